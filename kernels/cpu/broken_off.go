//go:build !brokenkernel

package kernels

// brokenKernel is false but in builds with the tag brokenkernel, which exist to show that tests catch a
// kernel whose result depends on the width of the pass.
const brokenKernel = false

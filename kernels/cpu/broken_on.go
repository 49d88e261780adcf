//go:build brokenkernel

package kernels

const brokenKernel = true

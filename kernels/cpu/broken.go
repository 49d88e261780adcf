//go:build brokenkernel

package cpu

// Builds with the tag brokenkernel have a kernel whose result depends on the width of the pass, to show that tests catch it: see
// docs/kernels.md, "A kernel that must be caught".

// #cgo CFLAGS: -DTK_BROKEN
import "C"

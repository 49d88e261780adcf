//go:build !asan

package cpu

// guard and unguard mark the end of mapped memory for the address sanitizer: see guard_asan.go.
func guard([]byte) {}

func unguard([]byte) {}

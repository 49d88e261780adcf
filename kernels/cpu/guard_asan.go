//go:build asan

package kernels

// #include <sanitizer/asan_interface.h>
import "C"

import "unsafe"

// Mapped memory is unknown to the address sanitizer. These make what lies between the end of b and the end of
// its last page forbidden, and allowed again before the pages are given back.

func guard(b []byte) { C.__asan_poison_memory_region(tail(b)) }

func unguard(b []byte) { C.__asan_unpoison_memory_region(tail(b)) }

func tail(b []byte) (unsafe.Pointer, C.size_t) {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), len(b)), C.size_t(-len(b) & 4095)
}

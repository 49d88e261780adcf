//go:build asan

package cpu

// #include <sanitizer/asan_interface.h>
import "C"

import "unsafe"

// The address sanitizer does not know mapped memory. guard forbids access between the end of b and the end of its last
// page; unguard allows it again, before the pages are unmapped.

func guard(b []byte) { C.__asan_poison_memory_region(tail(b)) }

func unguard(b []byte) { C.__asan_unpoison_memory_region(tail(b)) }

func tail(b []byte) (unsafe.Pointer, C.size_t) {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), len(b)), C.size_t(-len(b) & 4095)
}

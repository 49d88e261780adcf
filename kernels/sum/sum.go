// Package sum is the checksum of streamed weights (sum.h), which finds a disk's and a program's mistakes and no forgery. The kernels
// compute the same one over weights that they are about to read.
package sum

// #cgo CFLAGS: -std=c11 -O3 -Wall -Wextra
// #include "sum.h"
// // by pointer, so that a state is not copied
// static uint32_t sum_end(const tk_sum *s, const uint8_t *rest, size_t n) { return tk_sum_end(*s, rest, n); }
// static uint32_t sum_of(const uint8_t *p, size_t n) { return tk_sum_of(p, n); }
// static void sum_add(tk_sum *s, const uint8_t *p, size_t n) { tk_sum_add(s, p, n); }
import "C"

import "unsafe"

// Of returns the checksum of b.
func Of(b []byte) uint32 { return uint32(C.sum_of(at(b), C.size_t(len(b)))) }

// Sum is a checksum of bytes that come in parts. Its zero value is ready. Not safe for concurrent use.
type Sum struct {
	lanes C.tk_sum
	bytes int
	rest  [C.TK_SUM_STEP]byte // the last bytes%len of them
}

// Add adds bytes.
func (s *Sum) Add(b []byte) {
	if have := s.bytes % len(s.rest); have > 0 {
		n := copy(s.rest[have:], b)
		if s.bytes, b = s.bytes+n, b[n:]; have+n < len(s.rest) {
			return
		}
		C.sum_add(&s.lanes, at(s.rest[:]), C.size_t(len(s.rest)))
	}
	whole := len(b) - len(b)%len(s.rest)
	C.sum_add(&s.lanes, at(b), C.size_t(whole))
	s.bytes += copy(s.rest[:], b[whole:]) + whole
}

// Value returns the checksum of what was added.
func (s *Sum) Value() uint32 { return uint32(C.sum_end(&s.lanes, at(s.rest[:]), C.size_t(s.bytes))) }

func at(b []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(b))) }

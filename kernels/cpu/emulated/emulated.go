//go:build amd64 && linux

// Package emulated runs an instruction that this processor may lack, vpdpbusd of AVX-VNNI, so that kernels that use it can be tested as
// they were compiled. Only tests import it.
package emulated

// #cgo CFLAGS: -O2 -std=c11 -D_GNU_SOURCE -Wall -Wextra
// #include "emulated.h"
import "C"

import "testing"

// VNNI emulates the instruction in all threads until the test ends: a handler of SIGILL computes what it would have. On a processor that
// has it nothing is emulated. It takes some microseconds each time. Not in parallel tests.
func VNNI(t testing.TB) {
	t.Helper()
	if _, err := C.emulate_install(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { C.emulate_remove() })
}

// Count returns how many instructions were emulated so far.
func Count() int64 { return int64(C.emulate_count()) }

// ways is the number of ways in which each names its operands; operands holds a sum, unsigned and signed bytes, and the result.
const ways = int(C.EMULATE_WAYS)

type operands [4][32]byte

func each(v *operands, how int) { C.emulate_each((*C.uint8_t)(&v[0][0]), C.int(how)) }

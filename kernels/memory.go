package kernels

import (
	"fmt"
	"syscall"
	"unsafe"
)

// Memory is zeroed, page-aligned memory outside the Go heap, so that C may keep pointers into it. Free
// ends it; using its bytes afterwards faults.
type Memory struct{ b []byte }

// Alloc maps bytes of memory. The pages are real only once touched. bytes 0 is allowed.
func Alloc(bytes int) (*Memory, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("kernels: memory of %d bytes", bytes)
	}
	if bytes == 0 {
		return &Memory{}, nil
	}
	b, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("kernels: the system refuses %d bytes of memory: %w", bytes, err)
	}
	if bytes >= 4<<20 {
		_ = syscall.Madvise(b, 14) // MADV_HUGEPAGE: fewer TLB misses; only advice
	}
	return &Memory{b: b}, nil
}

// Bytes returns the memory, valid until Free.
func (m *Memory) Bytes() []byte { return m.b }

// Lock keeps the memory from being paged out.
func (m *Memory) Lock() error {
	if len(m.b) == 0 {
		return nil
	}
	if err := syscall.Mlock(m.b); err != nil {
		return fmt.Errorf("kernels: the system refuses to lock %d bytes of memory (see ulimit -l): %w", len(m.b), err)
	}
	return nil
}

// Free gives the memory back. A second Free does nothing.
func (m *Memory) Free() {
	if len(m.b) > 0 {
		_ = syscall.Munmap(m.b) // fails only for a slice that Mmap did not return
	}
	m.b = nil
}

// at returns the address of byte off of m, which stays where it is until Free.
func (m *Memory) at(off int) unsafe.Pointer { return unsafe.Pointer(&m.b[off]) }

// view returns n values of type T from byte off of m on.
func view[T any](m *Memory, off, n int) []T {
	if n == 0 {
		return nil
	}
	var zero T
	_ = m.b[off : off+n*int(unsafe.Sizeof(zero))]
	return unsafe.Slice((*T)(m.at(off)), n)
}

func round64(n int) int { return (n + 63) &^ 63 }

// layout adds up 64-aligned pieces of one Memory.
type layout struct{ size int }

func (l *layout) add(bytes int) (off int) {
	off = l.size
	l.size += round64(bytes)
	return off
}

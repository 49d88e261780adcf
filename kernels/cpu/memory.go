package cpu

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Memory is zeroed, page-aligned memory outside the Go heap, so that C may keep pointers into it. Its bytes
// must not be used after Free: that faults.
type Memory struct{ b []byte }

// Alloc maps bytes of memory. The system provides a page when it is first touched. bytes may be 0.
func Alloc(bytes int) (*Memory, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("kernels: memory of %d bytes", bytes)
	}
	if bytes == 0 {
		return &Memory{}, nil
	}
	return mapped(bytes)
}

func mapped(bytes int) (*Memory, error) {
	b, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("kernels: the system refuses %d bytes of memory: %w", bytes, err)
	}
	if bytes >= 4<<20 {
		_ = syscall.Madvise(b, 14) // MADV_HUGEPAGE: fewer TLB misses; only advice
	}
	guard(b)
	return &Memory{b: b}, nil
}

// Bytes returns the memory, valid until Free.
func (m *Memory) Bytes() []byte { return m.b }

// populate makes the system provide the pages of b now, so that a lack of memory is an error here and first use
// costs no page fault. b is a part of a Memory that begins at a page; it keeps its values.
func populate(b []byte) error {
	const populateWrite = 23 // MADV_POPULATE_WRITE, Linux 5.14
	if len(b) == 0 {
		return nil
	}
	switch err := syscall.Madvise(b, populateWrite); err {
	case nil:
		return nil
	case syscall.EINVAL: // an older system: touch every page
		for i := 0; i+4 <= len(b); i += 4096 {
			atomic.AddUint32((*uint32)(unsafe.Pointer(&b[i])), 0) // a write that keeps the value
		}
		return nil
	default:
		return fmt.Errorf("kernels: the system refuses %d bytes of memory: %w", len(b), err)
	}
}

// share puts bytes of a file, from at on, in the place of bytes [from, to) of the memory, at the same addresses and read-only. Those behind
// the last whole page are copied, unless they end the memory.
func (m *Memory) share(fd uintptr, at int64, from, to int) error {
	rest := (to - from) % page
	if to == len(m.b) {
		rest = 0
	}
	if rest > 0 {
		if n, err := syscall.Pread(int(fd), m.b[to-rest:to], at+int64(to-rest-from)); n != rest {
			return fmt.Errorf("kernels: the file's last %d bytes: %d were read: %v", rest, n, err)
		}
	}
	if to -= rest; from == to {
		return nil
	}
	if _, _, err := syscall.Syscall6(syscall.SYS_MMAP, uintptr(unsafe.Pointer(&m.b[from])), uintptr(to-from), syscall.PROT_READ,
		syscall.MAP_SHARED|syscall.MAP_FIXED, fd, uintptr(at)); err != 0 {
		return fmt.Errorf("kernels: the system refuses to map %d bytes: %w", to-from, err)
	}
	return nil
}

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
		unguard(m.b)
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

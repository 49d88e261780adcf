package stream

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// allocate maps memory outside of the Go heap, at a page. The system provides it when it is touched. huge: in huge pages if it likes.
func allocate(bytes int64, huge bool) ([]byte, error) {
	if bytes == 0 {
		return nil, nil
	}
	b, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("stream: the system refuses %d bytes of memory: %w", bytes, err)
	}
	advice := unix.MADV_NOHUGEPAGE // where only a few pages are to be touched
	if huge {
		advice = unix.MADV_HUGEPAGE
	}
	_ = unix.Madvise(b, advice) // a system without huge pages refuses both
	return b, nil
}

// populate makes the system provide the memory of b now. told is called now and then.
func populate(b []byte, told func()) error {
	for len(b) > 0 {
		n := min(len(b), populateBytes)
		switch err := unix.Madvise(b[:n], unix.MADV_POPULATE_WRITE); {
		case errors.Is(err, unix.EINVAL): // Linux before 5.14
			for i := 0; i < n; i += page {
				b[i] = 0
			}
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return fmt.Errorf("stream: the system refuses %d bytes of memory: %w", len(b), err)
		}
		b = b[n:]
		told()
	}
	return nil
}

// populateBytes are provided at a time.
const populateBytes = 64 << 20

// release unmaps memory.
func release(b []byte) {
	if len(b) > 0 {
		_ = unix.Munmap(b) // fails only for what Mmap did not return
	}
}

// drop gives the pages of b back; it then reads as zeros.
func drop(b []byte) error { return unix.Madvise(b, unix.MADV_DONTNEED) }

// scratch is a reader's own memory.
type scratch struct {
	raw    []byte // on the heap: rows of a model file
	direct []byte // aligned
}

// aligned returns n bytes at a page.
func (s *scratch) aligned(n int64) ([]byte, error) {
	if int64(len(s.direct)) < n {
		release(s.direct)
		var err error
		if s.direct, err = allocate(n, true); err != nil {
			return nil, err
		}
	}
	return s.direct[:n], nil
}

func (s *scratch) free() {
	release(s.direct)
	s.direct = nil
}

//go:build cuda

package gpu

import (
	"unsafe"

	"gorgonia.org/cu"

	"github.com/tandem-llm/tandem/kernels/cuda"
)

// staging is pinned memory through which bytes travel between Go's memory, which may not be there when a copy runs, and the GPU. Writes
// fill one half from its start; when it is full they go on in the other, once the copies from that have ended. So many small writes
// cost no waiting, and a large one is copied into one half while the GPU takes the other.
type staging struct {
	halves [2]half
	back   []byte // for reads
	now    int    // the half that is being filled
	used   int    // bytes of it
}

type half struct {
	bytes []byte
	taken cu.Event // after the last copy from this half
	busy  bool     // taken is recorded
}

const halfBytes, backBytes = 4 << 20, 4 << 20

func (s *staging) open(d *driver) error {
	host, err := allocPinned(backBytes)
	if err != nil {
		return d.failed("allocating pinned memory", backBytes, err)
	}
	s.back = unsafe.Slice((*byte)(host), backBytes)
	for i := range s.halves {
		host, err := allocPinned(halfBytes)
		if err != nil {
			return d.failed("allocating pinned memory", halfBytes, err)
		}
		s.halves[i].bytes = unsafe.Slice((*byte)(host), halfBytes)
		if s.halves[i].taken, err = cu.MakeEvent(cu.DisableTiming); err != nil {
			return d.failed("making an event", 0, err)
		}
	}
	return nil
}

func (s *staging) write(d *driver, to cuda.Pointer, src []byte) error {
	for len(src) > 0 {
		if s.used == halfBytes {
			if err := s.next(d); err != nil {
				return err
			}
		}
		n := copy(s.halves[s.now].bytes[s.used:], src)
		at := unsafe.Pointer(&s.halves[s.now].bytes[s.used])
		if err := cu.MemcpyHtoDAsync(cu.DevicePtr(to), at, int64(n), d.stream); err != nil {
			return d.failed("writing to the GPU's memory", 0, err)
		}
		s.used += n
		src, to = src[n:], to+cuda.Pointer(n)
	}
	return nil
}

// next goes on to the other half, which may be overwritten from then on.
func (s *staging) next(d *driver) error {
	h := &s.halves[s.now]
	if err := h.taken.Record(d.stream); err != nil {
		return d.failed("recording an event", 0, err)
	}
	h.busy = true
	s.now, s.used = 1-s.now, 0
	if h = &s.halves[s.now]; h.busy {
		h.busy = false
		return d.failed("waiting for a copy", 0, h.taken.Synchronize())
	}
	return nil
}

// read copies, and waits once for each piece; then no half is in use either.
func (s *staging) read(d *driver, dst []byte, from cuda.Pointer) error {
	for len(dst) > 0 {
		n := min(len(dst), len(s.back))
		if err := cu.MemcpyDtoHAsync(unsafe.Pointer(&s.back[0]), cu.DevicePtr(from), int64(n), d.stream); err != nil {
			return d.failed("reading from the GPU's memory", 0, err)
		}
		if err := d.Wait(); err != nil {
			return err
		}
		copy(dst, s.back[:n])
		dst, from = dst[n:], from+cuda.Pointer(n)
	}
	s.halves[0].busy, s.halves[1].busy, s.used = false, false, 0
	return nil
}

// close frees the memory. Nothing may be running.
func (s *staging) close() {
	if s.back != nil {
		_ = cu.MemFreeHost(unsafe.Pointer(&s.back[0]))
		s.back = nil
	}
	for i := range s.halves {
		if h := &s.halves[i]; h.bytes != nil {
			_ = cu.MemFreeHost(unsafe.Pointer(&h.bytes[0]))
			if h.taken != (cu.Event{}) {
				_ = cu.DestroyEvent(&h.taken)
			}
			*h = half{}
		}
	}
}

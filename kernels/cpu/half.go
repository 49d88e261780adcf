package cpu

// #include "tk.h"
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/tandem-llm/tandem/kernels"
)

// Shared is memory that another device sees too, which runs the other half of each pass.
type Shared struct {
	Buffers []unsafe.Pointer // where each buffer of the program begins; nil for one without rows
	Flags   []byte           // FlagBytes of them, at a multiple of 128: where both meet
}

// FlagBytes is the size of Shared.Flags.
const FlagBytes = int(unsafe.Sizeof(C.tk_flags{}))

// Half is a runner of one half of a pass whose other half another device runs at the same time. Its Row is the other device's to tell.
type Half struct{ *runner }

// Half compiles a half of a program with the weights of whole.
func (d *Device) Half(whole, part *kernels.Program, w kernels.Weights, c kernels.Cache, s Shared) (*Half, error) {
	if len(s.Buffers) != len(part.Buffers) || len(s.Flags) < FlagBytes {
		return nil, fmt.Errorf("kernels: %d buffers and %d bytes of flags are shared, want %d and %d", len(s.Buffers), len(s.Flags),
			len(part.Buffers), FlagBytes)
	}
	r, err := d.compile(part, w, c, half{whole: whole, coupled: true, shared: &s})
	if err != nil {
		return nil, err
	}
	r.prog.flags = (*C.tk_flags)(unsafe.Pointer(&s.Flags[0]))
	return &Half{r}, nil
}

// HalfFootprint is Footprint for a half whose weights, cache and buffers are in memory that the devices share: what it takes beside them.
func (d *Device) HalfFootprint(p *kernels.Program) (bytes int64, err error) {
	l, err := lower(p, true)
	if err != nil {
		return 0, err
	}
	l.borrows = true
	return int64(l.place().size), nil
}

// Reset makes both sides come for the first time again. Neither may be running. One that waits for the other longer than patience goes.
func (h *Half) Reset(patience time.Duration) {
	*h.prog.flags = C.tk_flags{patience: C.int64_t(patience)}
	h.prog.met = 0
}

// Leave makes a side come no more: this one, or the other device, which cannot say so itself once it is lost.
func (h *Half) Leave(other bool) {
	of := &h.prog.flags.here
	if other {
		of = &h.prog.flags.there
	}
	C.tk_leave(of)
}

// Gone reports which side has gone since Reset, and how often each has come.
func (h *Half) Gone() (here, there bool, came [2]int) {
	f := h.prog.flags
	return f.here.gone != 0, f.there.gone != 0, [2]int{int(f.here.came), int(f.there.came)}
}

// Second returns at how many meetings since it was compiled the other device had come first.
func (h *Half) Second() int { return int(h.prog.second) }

// Lend says where the pass that is started hands over parts, until the next pass: in the order of the processor's own parts, at a multiple
// of 64.
func (h *Half) Lend(p kernels.Parts, mem []byte) error {
	s := &unsafe.Slice(h.prog.parts, h.prog.nparts)[p]
	floats, blocks := int(C.tk_part_floats(s.group, s.dim)), 0
	rows := int(h.prog.pass.rows)
	prefix, listed := unsafe.Slice(h.prog.pass.prefix, rows), unsafe.Slice(h.prog.pass.anc_len, rows)
	for i := range rows {
		blocks = max(blocks, (int(prefix[i]+listed[i])-1)/kernels.Block+1)
	}
	if need := 4 * floats * int(s.heads) * rows * blocks; len(mem) < need || need == 0 {
		return fmt.Errorf("kernels: %d bytes for parts %d, want %d", len(mem), p, need)
	}
	s.mem, s.cap = (*C.float)(unsafe.Pointer(&mem[0])), C.size_t(len(mem)/4)
	return nil
}

// Stages runs stages of the pass that is started.
func (h *Half) Stages(from, to int) error { return h.runner.Stages(from, to) }

// Close frees what is not shared.
func (h *Half) Close() {
	if h.mem != nil {
		C.tk_share_parts(h.prog, nil)
	}
	h.runner.Close()
}

// CacheBytes returns the size of a cache of this processor's layout.
func CacheBytes(shape kernels.KVShape, pages int) (int, error) {
	l, err := layoutOf(shape)
	if err != nil {
		return 0, err
	}
	return (pages*l.page+63)&^63 + l.states.Size, nil
}

// CacheIn returns a cache in CacheBytes bytes of memory, at a multiple of 64, which its owner frees. It is not closed.
func CacheIn(shape kernels.KVShape, pages int, mem []byte) (*Cache, error) {
	l, err := layoutOf(shape)
	if err != nil {
		return nil, err
	}
	at := (pages*l.page + 63) &^ 63
	if pages < 1 || pages > kernels.MaxPages || len(mem) < at+l.states.Size {
		return nil, fmt.Errorf("kernels: KV cache of %d pages in %d bytes, want 1 to %d pages in %d bytes", pages, len(mem),
			kernels.MaxPages, at+l.states.Size)
	}
	return &Cache{shape, l, pages, at, &Memory{mem}}, nil
}

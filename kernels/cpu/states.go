package cpu

// #include "tk.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/tandem-llm/tandem/kernels"
)

func round16(n int) int { return (n + 15) &^ 15 }

// CopyStates copies slots.
func (c *Cache) CopyStates(dst, src []int32) {
	slots, n := c.mem.b[c.statesAt:], c.states.Slot
	for i := range dst {
		copy(slots[int(dst[i])*n:][:n], slots[int(src[i])*n:])
	}
}

// deltaRow returns how many numbers a step's row has after the convolution: tk_delta.
func deltaRow(d kernels.DeltaShape) int { return round16(d.Channels() + 2*d.ValueHeads + d.KeyHeads) }

// placeDeltas makes room for what the delta nets of a program share, and for a tk_delta for each operation.
func (o *offsets) placeDeltas(l *lowered) {
	widest := 0
	for _, op := range l.list {
		if op.inputs {
			o.deltas = append(o.deltas, o.add(C.sizeof_tk_delta))
			widest = max(widest, deltaRow(op.Op.(kernels.DeltaNet).DeltaShape))
		}
	}
	o.deltaRows = o.add(4 * widest * (l.MaxRows + l.KV.Records))
}

// fillDelta fills the tk_delta of operations i and i+1 of the list.
func (r *runner) fillDelta(c []C.tk_op, i, at int) {
	o, m := r.program.list[i].Op.(kernels.DeltaNet), r.mem
	d := (*C.tk_delta)(m.at(at))
	d.key_heads, d.value_heads, d.dim, d.kernel = C.int(o.KeyHeads), C.int(o.ValueHeads), C.int(o.Dim), C.int(o.Kernel)
	d.channels, d.scale = C.int(o.Channels()), C.float(1/float32(math.Sqrt(float64(o.Dim))))
	d.alpha, d.beta = r.floats(o.Alpha), r.floats(o.Beta)
	float := func(n int) *C.float { return (*C.float)(m.at(r.at.vecs[i] + 4*n)) }
	n := o.Channels() * o.Kernel
	d.conv, d.a, d.bias = float(0), float(n), float(n+o.ValueHeads)
	d.row, d.matrices = C.size_t(deltaRow(o.DeltaShape)), C.size_t((o.Kernel-1)*o.Channels())
	s := &r.cache.states
	d.slot, d.record = C.size_t(s.Slot/4), C.size_t(s.Record/4)
	in := func(at int) *C.float { return (*C.float)(r.cache.mem.at(r.cache.statesAt + at)) }
	d.slots = in(s.InSlot[o.State])
	if r.program.KV.Records > 0 {
		d.records = in(r.program.KV.Slots*s.Slot + s.InRecord[o.State])
	}
	c[i].delta, c[i+1].delta = d, d
}

// setWalks copies a pass's walks into memory that C may read, from byte at on.
func (r *runner) setWalks(a *kernels.Pass, at int) {
	c, n := &r.prog.pass, 0
	for _, w := range a.Walks {
		n += len(w.Steps)
	}
	c.nwalks, c.nsteps, c.held = C.int(len(a.Walks)), C.int(n), 1
	if len(a.Walks) == 0 {
		return
	}
	walks := view[C.tk_walk](r.pass, at, len(a.Walks))
	steps := view[C.tk_step](r.pass, at+len(walks)*C.sizeof_tk_walk, n+1)[:n]
	c.walks, c.steps = &walks[0], (*C.tk_step)(unsafe.Pointer(unsafe.SliceData(steps)))
	n = 0
	for i, w := range a.Walks {
		t := &walks[i]
		*t = C.tk_walk{from: C.int32_t(w.From), first: C.int32_t(n), n: C.int32_t(len(w.Steps))}
		var left [kernels.MaxHeld]int32 // the step that left each state, counted from 1
		saved := false                  // in slot From
		for _, s := range w.Steps {
			steps[n] = C.tk_step{row: C.int32_t(s.Row), record: C.int32_t(s.Record), in: C.int32_t(s.In), out: C.int32_t(s.Out),
				save: C.int32_t(s.Save), walk: C.int32_t(i), parent: C.int32_t(left[s.In] - 1), last: 1}
			if p := left[s.In]; p > 0 {
				steps[p-1].last = 0
			} else if saved {
				t.keep = 1
			}
			if s.Save >= 0 {
				steps[n].last = 0
				saved = saved || s.Save == w.From
			}
			n++
			left[s.Out] = int32(n)
			c.held = max(c.held, C.int(s.Out)+1)
		}
	}
}

func walkBytes(a *kernels.Pass) int {
	n := (len(a.Walks)+1)*C.sizeof_tk_walk + C.sizeof_tk_step
	for _, w := range a.Walks {
		n += len(w.Steps) * C.sizeof_tk_step
	}
	return n
}

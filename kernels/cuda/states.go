package cuda

import (
	"math"

	"github.com/tandem-llm/tandem/kernels"
)

const line = 128 // bytes that a warp reads at once: states begin at a multiple of it

// CopyStates copies slots, by a kernel that takes them in order. It does not wait for it.
func (c *cache) CopyStates(dst, src []int32) {
	if c.mem.Size > 0 && c.states.Slot > 0 {
		move(c, "copy_states", 0, grid((c.states.Slot/4+threads-1)/threads, 1, 1, threads, 0), dst, src)
	}
}

// mostSteps is how many steps the walks of a pass may have: each row and each record is in one.
func (l *placed) mostSteps() int {
	if len(l.KV.States) == 0 {
		return 0
	}
	return l.MaxRows + l.KV.Records
}

func deltaGroups(dim int) int   { return (dim + deltaColumns - 1) / deltaColumns }
func deltaSegments(dim int) int { return (dim + deltaKeys - 1) / deltaKeys }

// deltaRow returns how many numbers delta_in hands to delta_walk for a step.
func deltaRow(d kernels.DeltaShape) int { return round(d.Channels()+2*d.ValueHeads+d.KeyHeads, 32) }

// deltaPart returns how many numbers of a held state a block of delta_walk keeps: padded.
func deltaPart(d kernels.DeltaShape) int { return deltaSegments(d.Dim) * deltaKeys * deltaColumns }

// placeDeltas returns how many bytes delta nets need beside buffers: rows of steps, and room for held states. That is at least what one
// block of delta_walk may need, and at most scratchMost more: with less than all blocks need, fewer of them run, each with more to do.
func (l *placed) placeDeltas() int {
	row := 0
	for _, o := range l.Ops {
		if o, ok := o.(kernels.DeltaNet); ok {
			one := kernels.MaxHeld * deltaPart(o.DeltaShape)
			row = max(row, deltaRow(o.DeltaShape))
			l.room = max(l.room, one, min(one*deltaGroups(o.Dim)*o.ValueHeads, scratchMost/4))
		}
	}
	return 4 * (row*l.mostSteps() + l.room)
}

// deltaNet lowers a delta net.
func (l *lowering) deltaNet(o kernels.DeltaNet, i int) []item {
	s := &l.cache.states
	slots := l.cache.mem.At + Pointer(l.cache.statesAt)
	x := l.elementwise("delta_in", i, o.Out, o.In, o.Alpha, o.Beta)
	x.c.delta = cDelta{slots: slots + Pointer(s.InSlot[o.State]), records: slots + Pointer(l.KV.Slots*s.Slot+s.InRecord[o.State]),
		alpha: l.buf(o.Alpha), beta: l.buf(o.Beta), rows: l.at(l.scratch), slot: int64(s.Slot / 4), record: int64(s.Record / 4),
		row: int64(deltaRow(o.DeltaShape)), room: int64(l.room), keyHeads: int32(o.KeyHeads), valueHeads: int32(o.ValueHeads),
		dim: int32(o.Dim), taps: int32(o.Kernel), channels: int32(o.Channels()), scale: 1 / float32(math.Sqrt(float64(o.Dim)))}
	x.c.delta.held = x.c.delta.rows + Pointer(4*int(x.c.delta.row)*l.mostSteps())
	y := x
	x.form, x.writes = deltaIn, nil
	y.kernel, y.form = "delta_walk", deltaWalk
	return []item{x, y}
}

// walks are a pass's walks in the form that the kernels read.
type walks struct {
	all   []cWalk
	steps []cStep
	held  int32 // the most states that a walk holds
}

// set lays out the walks of a pass. A state stays where it is computed from one step to the next; it is held only for steps that come
// later, in the place of its number.
func (w *walks) set(l *placed, a *kernels.Pass) {
	w.all, w.steps, w.held = w.all[:0], w.steps[:0], 0
	if len(l.KV.States) == 0 {
		return
	}
	for i, x := range a.Walks {
		to := cWalk{from: x.From, first: int32(len(w.steps)), n: int32(len(x.Steps))}
		var left [kernels.MaxHeld]int32 // the step that left each state, counted from 1
		saved := false                  // in slot From
		for _, s := range x.Steps {
			n := int32(len(w.steps))
			c := cStep{row: s.Row, record: s.Record, save: s.Save, walk: int32(i), parent: left[s.In] - 1, load: loadNone, hold: -1,
				update: flag(s.Save >= 0)}
			switch {
			case c.parent < 0 && saved:
				c.load, to.keep, w.held = s.In, 1, max(w.held, s.In+1)
			case c.parent < 0:
				c.load = loadFirst
			case c.parent < n-1:
				c.load, w.held = s.In, max(w.held, s.In+1)
				w.steps[c.parent].hold = s.In
			}
			if c.parent >= 0 {
				w.steps[c.parent].update = 1
			}
			saved = saved || s.Save >= 0 && s.Save == x.From
			w.steps = append(w.steps, c)
			left[s.Out] = n + 1
		}
		w.all = append(w.all, to)
	}
}

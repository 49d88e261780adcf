package kerneltest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

// states runs the tests of recurrent layers.
func states(t *testing.T, devices []kernels.Device) {
	t.Run("DeltaNets", func(t *testing.T) { deltaNets(t, devices) })
	t.Run("RowAlone", func(t *testing.T) { deltaRowAlone(t, devices) })
	t.Run("Errors", func(t *testing.T) { deltaErrors(t, devices) })
}

// deltas is a program of two delta nets that take the same inputs through states of their own.
type deltas struct {
	rig
	p               *kernels.Program
	shape           kernels.DeltaShape
	in, alpha, beta kernels.Buf
	out             [2]kernels.Buf
	rows, slots     int
}

// newDeltas compiles it on devices that have delta nets of the shape: others say so by name.
func newDeltas(t *testing.T, r *rand.Rand, devices []kernels.Device, shape kernels.DeltaShape, rows, slots, records int) *deltas {
	d := planDeltas(r, shape, rows, slots, records)
	d.rig = newRig(t, able(t, devices, d.p), d.p, nil, 1)
	return d
}

func planDeltas(r *rand.Rand, shape kernels.DeltaShape, rows, slots, records int) *deltas {
	p := kernels.NewProgram(rows, 0)
	n := shape.Channels()
	d := &deltas{p: p, shape: shape, in: p.Buf(n), alpha: p.Buf(shape.ValueHeads), beta: p.Buf(shape.ValueHeads), rows: rows, slots: slots}
	p.KV = kernels.KVShape{Layers: []kernels.KVLayer{{Heads: 1, Dim: 32}, {}}, Slots: slots, Records: records}
	for i := range d.out {
		p.KV.States = append(p.KV.States, kernels.State{Layer: i, Kind: "delta net", Floats: shape.Floats(), Record: shape.Record()})
		d.out[i] = p.Buf(shape.ValueHeads * shape.Dim)
		o := kernels.DeltaNet{DeltaShape: shape, State: i, In: d.in, Alpha: d.alpha, Beta: d.beta,
			Conv: RandomFloats(r, n*shape.Kernel, false), Bias: RandomFloats(r, shape.ValueHeads, false), Out: d.out[i]}
		for range shape.ValueHeads {
			o.A = append(o.A, -float32(r.ExpFloat64()))
		}
		p.Stage(fmt.Sprintf("layer %d", i))
		p.Add(o)
	}
	return d
}

// able returns the devices that have all that p asks for; what the others lack is in the log.
func able(t *testing.T, devices []kernels.Device, p *kernels.Program) (all []kernels.Device) {
	for _, d := range devices {
		own := *p
		own.Weights = slices.Clone(p.Weights)
		for i := range own.Weights {
			own.Weights[i].Layout = d.Layout(own.Weights[i].Type)
		}
		if _, err := d.Footprint(&own); errors.As(err, new(*kernels.Unsupported)) {
			t.Logf("%v: %v", d.About(), err)
			continue
		}
		all = append(all, d)
	}
	return all
}

// inputs gives all rows new inputs.
func (d *deltas) inputs(r *rand.Rand, hostile bool) {
	d.set(d.in, RandomFloats(r, d.rows*d.shape.Channels(), hostile))
	d.set(d.alpha, RandomFloats(r, d.rows*d.shape.ValueHeads, hostile))
	d.set(d.beta, RandomFloats(r, d.rows*d.shape.ValueHeads, hostile))
}

// pass returns a pass of rows that see nothing but themselves.
func (d *deltas) pass(walks []kernels.Walk) *kernels.Pass {
	a := &kernels.Pass{Pages: []int32{0}, Walks: walks}
	for _, w := range walks {
		for _, s := range w.Steps {
			if s.Row < 0 {
				continue
			}
			a.Anc, a.AncOff, a.AncLen = append(a.Anc, kernels.Cell(a.Rows)), append(a.AncOff, int32(a.Rows)), append(a.AncLen, 1)
			a.Pos, a.Prefix, a.Table = append(a.Pos, 0), append(a.Prefix, 0), append(a.Table, 0)
			a.Store = append(a.Store, kernels.Cell(a.Rows))
			a.Rows++
		}
	}
	return a
}

// random returns walks through so many rows, of any form that there may be.
func (d *deltas) random(r *rand.Rand, rows int) (walks []kernels.Walk) {
	slots, order := r.Perm(d.slots), r.Perm(rows)
	var records []int
	if n := d.p.KV.Records; n > 0 {
		records = r.Perm(n)
	}
	take := func(from *[]int) int32 {
		if len(*from) == 0 {
			return -1
		}
		x := (*from)[0]
		*from = (*from)[1:]
		return int32(x)
	}
	shared := take(&slots)
	for n := 1 + r.IntN(3); n > 0; n-- {
		w := kernels.Walk{From: -1}
		own := r.IntN(3) > 0
		if own {
			w.From = take(&slots)
		} else if r.IntN(2) == 0 {
			w.From = shared
		}
		filled, steps := []int32{0}, len(order)
		if n > 1 {
			steps = r.IntN(len(order) + 1)
		}
		step := func(row, record int32) {
			s := kernels.Step{Row: row, Record: record, In: filled[r.IntN(len(filled))], Out: int32(r.IntN(6)), Save: -1}
			if r.IntN(2) == 0 {
				s.Out = s.In
			}
			if r.IntN(12) == 0 {
				s.Out = kernels.MaxHeld - 1
			}
			if !slices.Contains(filled, s.Out) {
				filled = append(filled, s.Out)
			}
			if k := r.IntN(8); k == 0 {
				s.Save = take(&slots)
			} else if k == 1 && own {
				s.Save, own = w.From, false
			}
			w.Steps = append(w.Steps, s)
		}
		for range r.IntN(4) { // what earlier rows put in
			if record := take(&records); record >= 0 {
				step(-1, record)
			}
		}
		for ; steps > 0; steps-- {
			record := int32(-1)
			if r.IntN(2) == 0 {
				record = take(&records)
			}
			step(take(&order), record)
		}
		walks = append(walks, w)
	}
	return walks
}

// deltaNets: walks of any form, one pass after the other over slots and records that the passes before have left, and copies of slots. The
// last pass has inputs of every class.
func deltaNets(t *testing.T, devices []kernels.Device) {
	rounds := 12
	if *long {
		rounds = 60
	}
	for i, shape := range []kernels.DeltaShape{
		{KeyHeads: 1, ValueHeads: 1, Dim: 16, Kernel: 1}, {KeyHeads: 2, ValueHeads: 4, Dim: 64, Kernel: 4},
		{KeyHeads: 3, ValueHeads: 3, Dim: 48, Kernel: 2}, {KeyHeads: 1, ValueHeads: 2, Dim: 128, Kernel: 4},
		{KeyHeads: 1, ValueHeads: 17, Dim: 32, Kernel: 7}, {KeyHeads: 2, ValueHeads: 2, Dim: 20, Kernel: 3},
	} {
		r := rng(uint64(i))
		d := newDeltas(t, r, devices, shape, 11, 12, 9)
		for round := range rounds {
			d.inputs(r, round == rounds-1)
			a := d.pass(d.random(r, 1+r.IntN(d.rows)))
			d.run(a)
			for _, out := range d.out {
				d.same(fmt.Sprintf("%+v, round %d, %+v", shape, round, a.Walks), out, a.Rows)
			}
			if dst, src := []int32{int32(r.IntN(12)), int32(r.IntN(12))}, []int32{int32(r.IntN(12)), int32(r.IntN(12))}; round%3 == 0 {
				for _, m := range d.rig {
					m.cache.CopyStates(dst, src)
				}
			}
		}
	}
}

// deltaRowAlone: a tree in one pass gives each row what it gets alone, behind its parent's state from a slot; and what it gets when its
// ancestors come from records.
func deltaRowAlone(t *testing.T, devices []kernels.Device) {
	const rows = 9
	parents := [rows]int32{-1, 0, 1, 0, 3, 3, 5, -1, 7}
	r := rng(3)
	d := newDeltas(t, r, devices, kernels.DeltaShape{KeyHeads: 2, ValueHeads: 4, Dim: 32, Kernel: 4}, rows, rows+1, rows)
	d.inputs(r, false)
	d.run(d.pass([]kernels.Walk{depthFirst(parents[:])}))
	n := d.shape.ValueHeads * d.shape.Dim
	for _, m := range d.rig {
		want := m.get(d.out[1], rows)
		inputs := [3][]float32{m.get(d.in, rows), m.get(d.alpha, rows), m.get(d.beta, rows)}
		one := func(i int) {
			for j, b := range []kernels.Buf{d.in, d.alpha, d.beta} {
				dim := m.p.Buffers[b].Dim
				m.set(b, inputs[j][i*dim:][:dim])
			}
		}
		for i, p := range parents {
			one(i)
			m.run(d.pass([]kernels.Walk{{From: p, Steps: []kernels.Step{{Record: -1, Save: int32(i)}}}}))
			wantSame(t, fmt.Sprintf("%s: row %d alone", m.name, i), m.get(d.out[1], 1), want[i*n:][:n])
			replay := kernels.Walk{From: -1}
			for at := p; at >= 0; at = parents[at] {
				replay.Steps = append(replay.Steps, kernels.Step{Row: -1, Record: at, Save: -1})
			}
			slices.Reverse(replay.Steps)
			replay.Steps = append(replay.Steps, kernels.Step{Record: -1, Save: rows})
			m.run(d.pass([]kernels.Walk{replay}))
			wantSame(t, fmt.Sprintf("%s: row %d behind records", m.name, i), m.get(d.out[1], 1), want[i*n:][:n])
		}
	}
}

// depthFirst returns a walk through a tree, each row in the state of its depth and with a record.
func depthFirst(parents []int32) kernels.Walk {
	depth, w := make([]int32, len(parents)), kernels.Walk{From: -1}
	for i, p := range parents {
		s := kernels.Step{Row: int32(i), Record: int32(i), Save: -1}
		if p >= 0 {
			depth[i] = depth[p] + 1
			s.In = depth[p] + 1
		}
		s.Out = depth[i] + 1
		w.Steps = append(w.Steps, s)
	}
	return w
}

// deltaErrors: a pass with a wrong walk is refused before anything is written.
func deltaErrors(t *testing.T, devices []kernels.Device) {
	r := rng(4)
	d := newDeltas(t, r, devices, kernels.DeltaShape{KeyHeads: 1, ValueHeads: 2, Dim: 16, Kernel: 3}, 2, 2, 2)
	good := func() *kernels.Pass {
		return d.pass([]kernels.Walk{{From: 1, Steps: []kernels.Step{{Row: 0, Record: 0, Save: 1}, {Row: 1, Record: 1, Save: -1}}}})
	}
	d.inputs(r, false)
	d.run(good())
	for text, spoil := range map[string]func(s []kernels.Step){
		"step 1: row 7 of 2":                   func(s []kernels.Step) { s[1].Row = 7 },
		"step 1: record 2 of 2":                func(s []kernels.Step) { s[1].Record = 2 },
		"step 1: from state 3, which no step":  func(s []kernels.Step) { s[1].In = 3 },
		"step 1: saved in slot 2 of 2":         func(s []kernels.Step) { s[1].Save = 2 },
		"step 1: saved in slot 1, in which an": func(s []kernels.Step) { s[1].Save = 1 },
	} {
		for _, m := range d.rig {
			a := good()
			spoil(a.Walks[0].Steps)
			wantError(t, m.name+", "+text, m.runner.Run(a), text)
		}
	}
	d.run(good())
	d.same("after all that", d.out[1], 2)
}

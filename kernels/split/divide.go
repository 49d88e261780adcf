package split

import (
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// divide returns the halves of p for two devices in the same memory. Products and blocks of attention are divided. What fills an activation
// is done by both, each for its own; all else, delta nets too, by the left alone. They meet before one touches what the other has touched,
// if either writes.
func divide(p *kernels.Program) (halves [2]*kernels.Program) {
	d := divider{}
	for i := range halves {
		half := *p
		half.Ops, half.Stages, half.Taps = nil, nil, nil
		half.Parts = slices.Clone(p.Parts)
		halves[i], d.halves[i] = &half, &half
	}
	halves[0].Taps = p.Taps
	for i := range p.StageCount() {
		for _, h := range halves {
			h.Stages = append(h.Stages, kernels.Stage{Name: p.StageName(i), First: len(h.Ops)})
		}
		from, to := p.StageOps(i)
		for _, o := range p.Ops[from:to] {
			d.add(o)
		}
		if d.empty() { // a stage has an operation on both sides, whatever it holds
			d.meet()
		}
	}
	return halves
}

// divider adds operations to both halves.
type divider struct {
	halves [2]*kernels.Program
	since  []touch // since both met
}

// place is something in memory that both sides see.
type place struct {
	buf   kernels.Buf // or
	parts kernels.Parts
	cache bool
}

// touch is what a side has done to a place: read or written all of it, or its own part of the outputs in a range.
type touch struct {
	place
	side    int
	writes  bool
	divided bool
	outputs kernels.Range
}

// disturbs reports whether two touches must not be at the same time.
func (a touch) disturbs(b touch) bool {
	if a.side == b.side || a.place != b.place || !a.writes && !b.writes {
		return false
	}
	apart := a.outputs == b.outputs || a.outputs.To <= b.outputs.From || b.outputs.To <= a.outputs.From
	return !(a.divided && b.divided && apart)
}

func (d *divider) meet() {
	for _, h := range d.halves {
		h.Add(kernels.Meet{})
	}
	d.since = d.since[:0]
}

// empty reports whether a side has nothing to do in the last stage.
func (d *divider) empty() bool {
	return slices.ContainsFunc(d.halves[:], func(h *kernels.Program) bool { return h.Stages[len(h.Stages)-1].First == len(h.Ops) })
}

// do adds operations, one for each side or nil, after a meeting if what they touch asks for one.
func (d *divider) do(ops [2]kernels.Op, touches ...touch) {
	var all []touch
	for side, o := range ops {
		for _, t := range touches {
			if t.side = side; o != nil {
				all = append(all, t)
			}
		}
	}
	if slices.ContainsFunc(all, func(t touch) bool { return slices.ContainsFunc(d.since, t.disturbs) }) {
		d.meet()
	}
	for side, o := range ops {
		if o != nil {
			d.halves[side].Add(o)
		}
	}
	d.since = append(d.since, all...)
}

func both(o kernels.Op) [2]kernels.Op     { return [2]kernels.Op{o, o} }
func leftOnly(o kernels.Op) [2]kernels.Op { return [2]kernels.Op{o, nil} }

// reads returns what a side that runs o reads.
func (d *divider) reads(o kernels.Op) (all []touch) {
	for _, b := range d.halves[0].Uses(o).Reads {
		all = append(all, touch{place: place{buf: b, parts: kernels.None}})
	}
	return all
}

func writes(b kernels.Buf) touch {
	return touch{place: place{buf: b, parts: kernels.None}, writes: true}
}

func partsOf(p kernels.Parts) place { return place{buf: kernels.None, parts: p} }

var kv = place{buf: kernels.None, parts: kernels.None, cache: true}

func (d *divider) add(o kernels.Op) {
	switch o := o.(type) {
	case kernels.MatMul:
		d.matmul(o)
	case kernels.ExpertMatMul:
		d.experts(o)
	case kernels.Attention:
		d.attention(o)
	case kernels.StoreKV:
		d.do(leftOnly(o), append(d.reads(o), touch{place: kv, writes: true})...)
	case kernels.RMSNorm, kernels.Gate, kernels.Feed, kernels.ChooseExperts: // each side knows what was chosen
		d.do(both(o), d.reads(o)...)
	case kernels.TopK:
		d.do(leftOnly(o), d.reads(o)...)
	case kernels.AttendBlocks: // of a program that somebody else divides
		d.do(leftOnly(o), append(d.reads(o), touch{place: kv}, touch{place: partsOf(o.Out), writes: true})...)
	case kernels.JoinBlocks:
		d.do(both(o), append(d.reads(o), touch{place: partsOf(o.In)})...)
	default:
		d.do(leftOnly(o), append(d.reads(o), writes(d.halves[0].Uses(o).Writes))...)
	}
}

// matmul divides a product. One of a single group is the left's: there is nothing to divide.
func (d *divider) matmul(o kernels.MatMul) {
	r := o.Outputs.Of(d.halves[0].Weights[o.W].Rows)
	if r.To-r.From <= kernels.GroupRows {
		d.do(leftOnly(o), writes(o.Out))
		return
	}
	left, right := o, o
	left.Outputs, left.Side = r, kernels.Left
	right.Outputs, right.Side = r, kernels.Right
	t := writes(o.Out)
	t.divided, t.outputs = true, r
	d.do([2]kernels.Op{left, right}, t)
}

// experts divides the outputs of every expert.
func (d *divider) experts(o kernels.ExpertMatMul) {
	r := kernels.Range{To: d.halves[0].Weights[o.W].Rows}
	if r.To <= kernels.GroupRows {
		d.do(leftOnly(o), writes(o.Out))
		return
	}
	left, right := o, o
	left.Side, right.Side = kernels.Left, kernels.Right
	t := writes(o.Out)
	t.divided, t.outputs = true, r
	d.do([2]kernels.Op{left, right}, t)
}

// attention divides an attention into blocks, which both then join, each for its own activation.
func (d *divider) attention(o kernels.Attention) {
	var all kernels.Parts
	kvHeads, _, dim := d.halves[0].KV.Layers[d.halves[0].KV.Kept(o.Layer)].Seen()
	for _, h := range d.halves {
		h.Parts = append(h.Parts, kernels.PartShape{Heads: o.Heads, Dim: dim})
		all = kernels.Parts(len(h.Parts) - 1)
	}
	left, join := o.Blocks(all, kernels.Left, shared(kvHeads))
	right, _ := o.Blocks(all, kernels.Right, shared(kvHeads))
	d.do([2]kernels.Op{left, right}, append(d.reads(o), touch{place: kv}, touch{place: partsOf(all), writes: true, divided: true})...)
	d.do(both(join), append(d.reads(join), touch{place: partsOf(all)})...)
}

// shared is how many KV heads of the block at the cut are the left's.
func shared(kvHeads int) int { return (kvHeads + 1) / 2 }

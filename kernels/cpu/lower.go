package cpu

// #include "tk.h"
import "C"

import (
	"runtime"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// operation is one entry of the list that C runs: an operation of the program, or a part of the work of one.
type operation struct {
	kernels.Op           // nil: the entry computes angles
	table      int       // of those angles, or of those that a RoPE reads; else kernels.None
	inputs     bool      // the first of a DeltaNet's two entries: its inputs
	numbers    []float32 // that are kept beside the entry
}

// angleTable holds cosines and sines, computed once per row for all RoPE operations with the same frequencies.
type angleTable struct {
	freq      []float64
	magnitude float32
	ahead     int
}

// forms are the forms in which products read an activation: int8 with a scale per 32 or 256, f32.
type forms struct{ int8, int256, f32 bool }

// lowered is a program as C runs it: first operations that compute angles, then those of the program: two for a DeltaNet, one for others.
type lowered struct {
	*kernels.Program
	list   []operation
	angles []angleTable
	forms  []forms
	at     []int // where each operation of the program is in the list, and where they end
	kv     kvLayout
	attn   attentions

	vocabulary int // of TopK; 0 without

	borrows bool // its buffers are another runner's
	repeats bool // its products are repeated
}

// attentions is what the attentions of a program take; all is 0 without any.
type attentions struct {
	group                 int // most query heads of a KV head
	mostHeads, leastHeads int // KV heads
	part                  int // most floats of a row's results of one block, of all heads
	width                 int // most columns of a result
	parts                 []partHeads
}

// partHeads is how many KV heads Parts have, with how many query heads each.
type partHeads struct{ heads, group int }

// lower lists the entries of a program and what they need; fillOp says what each is to C. half says that p may be a half of a
// divided pass. Errors: those of Program.CheckFor; *kernels.Unsupported.
func lower(p *kernels.Program, half bool) (*lowered, error) {
	if err := p.CheckFor(name, kernels.Groups16, half); err != nil {
		return nil, err
	}
	l := &lowered{Program: p, forms: make([]forms, len(p.Activations)), attn: attentions{parts: make([]partHeads, len(p.Parts))}}
	if len(p.KV.Layers) > 0 {
		var err error
		if l.kv, err = layoutOf(p.KV); err != nil {
			return nil, err
		}
	}
	for _, o := range p.Ops {
		l.at = append(l.at, len(l.list))
		if err := l.add(o); err != nil {
			return nil, err
		}
	}
	l.at = append(l.at, len(l.list))
	var first []operation
	for i := range l.angles {
		first = append(first, operation{table: i})
	}
	l.list = append(first, l.list...)
	return l, nil
}

// add appends the entries of an operation and notes what they need.
func (l *lowered) add(op kernels.Op) error {
	x := operation{Op: op, table: kernels.None, numbers: kernels.Numbers(op)}
	var err error
	switch op := op.(type) {
	case kernels.MatMul:
		l.form(op.In, op.W)
	case kernels.ExpertMatMul:
		l.form(op.In, op.W)
	case kernels.RoPE:
		x.table = l.table(op.Rotation)
	case kernels.AddSiLU: // silu(in)·1
		x.numbers = slices.Repeat([]float32{1}, l.Buffers[op.In].Dim)
	case kernels.SigmoidScale: // blend: σ(gate)·1
		x.numbers = slices.Repeat([]float32{1}, l.Buffers[op.Gate].Dim)
	case kernels.Attention:
		l.attends(op.Layer, op.Heads)
	case kernels.AttendBlocks:
		err = l.handsOver(op.Out, l.attends(op.Layer, op.Heads))
	case kernels.JoinBlocks: // of a divided pass, perhaps of blocks that only the other half computes
		err = l.handsOver(op.In, l.attends(op.Layer, l.Parts[op.In].Heads))
	case kernels.TopK:
		l.vocabulary = l.Buffers[op.Logits].Dim
	case kernels.DeltaNet:
		if op.Dim%16 != 0 {
			return unsupported("delta net with heads of %d numbers, want a multiple of 16", op.Dim)
		}
		l.list = append(l.list, operation{Op: op, table: kernels.None, numbers: x.numbers, inputs: true})
		x.numbers = nil
	}
	l.list = append(l.list, x)
	return err
}

// attends notes an attention of so many query heads and returns how they are grouped.
func (l *lowered) attends(layer, heads int) partHeads {
	kept, a := l.kv.layers[layer], &l.attn
	a.group, a.mostHeads, a.width = max(a.group, heads/kept.heads), max(a.mostHeads, kept.heads), max(a.width, heads*kept.value)
	a.part = max(a.part, kept.heads*int(C.tk_part_floats(C.int(heads/kept.heads), C.int(kept.value))))
	if a.leastHeads == 0 || kept.heads < a.leastHeads {
		a.leastHeads = kept.heads
	}
	return partHeads{kept.heads, heads / kept.heads}
}

// handsOver notes how the heads of Parts are grouped.
func (l *lowered) handsOver(in kernels.Parts, here partHeads) error {
	parts := &l.attn.parts[in]
	if parts.heads > 0 && *parts != here {
		return unsupported("parts %d of layers with %d and %d KV heads", int(in), parts.heads, here.heads)
	}
	*parts = here
	return nil
}

// form records the form in which a product reads its input.
func (l *lowered) form(in kernels.Act, w kernels.W) {
	f, t := &l.forms[in], l.Weights[w].Type
	switch {
	case t.Super():
		f.int256 = true
	case t.Quantized():
		f.int8 = true
	default:
		f.f32 = true
	}
}

// table returns which table has a rotation's angles.
func (l *lowered) table(r kernels.Rotation) int {
	for i, t := range l.angles {
		if t.magnitude == r.Factor() && t.ahead == r.Ahead && slices.Equal(t.freq, r.InvFreq) {
			return i
		}
	}
	l.angles = append(l.angles, angleTable{slices.Clone(r.InvFreq), r.Factor(), r.Ahead})
	return len(l.angles) - 1
}

// weightOf returns the weight that entry i of the list reads, or None.
func (l *lowered) weightOf(i int) kernels.W {
	if l.list[i].Op == nil {
		return kernels.None
	}
	return l.Uses(l.list[i].Op).W
}

// stage returns the operations [from, to) of the list that belong to stage i of the program.
func (l *lowered) stage(i int) (from, to int) {
	from, to = l.StageOps(i)
	n := len(l.angles)
	if from, to = l.at[from]+n, l.at[to]+n; i == 0 {
		from = 0
	}
	return from, to
}

// offsets are where everything of a runner lies in its memory.
type offsets struct {
	layout
	prog, ops, sync      int
	vecs, each           []int // per operation
	freqs, tables        []int // per table of angles
	bufs                 []int
	q, q256, f32         []int // per activation, the forms that are read
	ids, sums, dummy     int
	attnOut, runs, done  int
	routes               int
	route                []routeOffsets
	keptLayers, partList int
	deltas               []int // per DeltaNet: its tk_delta
	deltaRows            int
}

func (l *lowered) place() *offsets {
	o := &offsets{}
	o.prog, o.ops = o.add(C.sizeof_tk_prog), o.add(len(l.list)*C.sizeof_tk_op)
	o.sync = o.add(len(l.list) * int(C.tk_sync_bytes()))
	for i, op := range l.list {
		o.vecs, o.each = append(o.vecs, o.add(4*len(op.numbers))), append(o.each, 0)
		if x, ok := op.Op.(kernels.ExpertMatMul); ok {
			o.each[i] = o.add(C.sizeof_size_t * l.Weights[x.W].Experts)
		}
	}
	for _, t := range l.angles {
		o.freqs = append(o.freqs, o.add(8*len(t.freq)))
		o.tables = append(o.tables, o.add(l.MaxRows*2*len(t.freq)*4))
	}
	rows := func(wanted bool) int {
		if wanted {
			return l.MaxWanted
		}
		return l.MaxRows
	}
	for _, b := range l.Buffers {
		if !l.borrows {
			o.bufs = append(o.bufs, o.add(rows(b.Wanted)*b.Dim*4))
		}
	}
	if l.repeats {
		widest := 0
		for i := range l.Weights {
			widest = max(widest, l.Weights[i].Rows)
		}
		o.dummy = o.add(4 * (widest + lanes))
	}
	o.q, o.q256, o.f32 = make([]int, len(l.forms)), make([]int, len(l.forms)), make([]int, len(l.forms))
	for i, a := range l.Activations {
		if l.forms[i].int8 {
			o.q[i] = o.add(rows(a.Wanted) * (a.Dim / 32) * C.sizeof_tk_qblock)
		}
		if l.forms[i].int256 {
			o.q256[i] = o.add(rows(a.Wanted) * (a.Dim / 32) * C.sizeof_tk_qblock)
		}
		if l.forms[i].f32 {
			o.f32[i] = o.add(rows(a.Wanted) * a.Dim * 4)
		}
	}
	o.ids, o.sums = o.add(l.MaxWanted*kernels.MaxTop*8), o.add(l.MaxWanted*8)
	o.attnOut = o.add(l.MaxRows * l.attn.width * 4)
	o.runs = o.add(l.MaxRows * C.sizeof_tk_run)
	o.done = o.add(l.MaxRows * (l.attn.mostHeads + 1) * 4)
	o.placeRoutes(l.Program)
	o.placeDeltas(l)
	o.keptLayers, o.partList = o.add(len(l.kv.layers)*C.sizeof_tk_kept), o.add(len(l.Parts)*C.sizeof_tk_parts)
	return o
}

// Footprint returns what p takes in host memory.
func (d *Device) Footprint(p *kernels.Program) (f kernels.Footprint, err error) {
	l, err := lower(p, true)
	if err != nil {
		return f, err
	}
	_, size := places(p)
	f.Weights = int64(size) - p.LentBytes()
	for _, b := range p.Buffers {
		if b.Wanted {
			f.Logits += int64(4 * p.MaxWanted * b.Dim)
		}
	}
	if a := l.attn; a.group > 0 {
		// Not d's threads: a device that only plans has one.
		rows := C.tk_cut_rows(C.int(p.MaxRows), C.int(a.group), C.int(a.leastHeads), C.int(runtime.NumCPU()))
		f.Block = 4 * int64(rows) * int64(a.part)
	}
	f.Page, f.Buffers, f.States = int64(l.kv.page), int64(l.place().size), int64(l.kv.states.Size)
	return f, nil
}

// chain marks runs of operations that touch one row at a time, so that a row passes through all of a
// run in one unit. A chain does not reach into the next stage.
func (l *lowered) chain(ops []C.tk_op) {
	byRow := func(o *C.tk_op) bool { return C.tk_kinds[o.kind].by_row != 0 }
	for s := range l.StageCount() {
		from, to := l.stage(s)
		for i := to - 2; i >= from; i-- {
			if o, next := &ops[i], &ops[i+1]; byRow(o) && byRow(next) && o.wanted == next.wanted {
				o.chain = next.chain + 1
			}
		}
	}
}

package cpu

// #include "tk.h"
import "C"

import (
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

type opKind int

const ( // in the order of tk_kind
	opEmbed opKind = iota
	opNorm
	opMatMul
	opBias
	opAngles
	opRoPE
	opStore
	opAttend
	opSiLU
	opGather
	opTopK
	opGELU
	opNormAdd
	opHeadNorm
	opScale
	opSoftCap
	opCopy
	opAttendBlocks
	opJoin
	opFeed
	opAddSiLU
	opBlend
	opPositionScale
	opAddScaled
	opClamped
	opChoose
	opExperts
	opJoinExperts
	opSigmoidScale
	opCopyHeads
	opMeet
	opDeltaIn
	opDelta
)

// operation is one entry of the list that C runs; -1 stands for no buffer, activation, weight, parts or table.
type operation struct {
	kind         opKind
	w            kernels.W
	in, in2, out kernels.Buf
	src, dst     kernels.Act
	parts        kernels.Parts
	route        kernels.Route
	sigmoid      bool
	normed       bool
	table        int
	vec, each    []float32
	eps, scale   float32
	window       int
	softCap      float32
	heads        int
	headDim      int
	ropeDim      int
	layer        int
	side, shared int
	every        int // positions that share an element of vec
	halves       bool
	ahead        int
	blank        bool
	from, to     int // elements of heads of in and out where a copy begins
	add          bool
	concurrent   bool
	outputs      kernels.Range
	delta        *kernels.DeltaNet
	wanted       bool
	dim          int
}

var none = operation{w: -1, in: -1, in2: -1, out: -1, src: -1, dst: -1, parts: -1, route: -1, table: -1}

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

	borrows bool // its buffers are another runner's
	repeats bool // its products are repeated
}

// attentions is what the attentions of a program take; all is 0 without any.
type attentions struct {
	group                 int // most query heads of a KV head
	mostHeads, leastHeads int // KV heads
	width                 int // most columns of a result
	parts                 []partHeads
}

// partHeads is how many KV heads Parts have, with how many query heads each.
type partHeads struct{ heads, group int }

// lower translates a checked plan; the error is *kernels.Unsupported.
func lower(p *kernels.Program) (*lowered, error) {
	if err := checkWeights(p); err != nil {
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
		x := l.operation(o)
		if x.kind == opDelta {
			if x.delta.Dim%16 != 0 {
				return nil, unsupported("delta net with heads of %d numbers, want a multiple of 16", x.delta.Dim)
			}
			x.kind, x.vec = opDeltaIn, deltaWeights(*x.delta)
			l.list = append(l.list, x)
			x.kind, x.vec = opDelta, nil
		}
		l.list = append(l.list, x)
		if err := l.partsOf(o); err != nil {
			return nil, err
		}
	}
	l.at = append(l.at, len(l.list))
	var first []operation
	for i, t := range l.angles {
		o := none
		o.kind, o.table, o.ropeDim, o.dim, o.scale, o.ahead = opAngles, i, 2*len(t.freq), 2*len(t.freq), t.magnitude, t.ahead
		first = append(first, o)
	}
	l.list = append(first, l.list...)
	return l, nil
}

func (l *lowered) operation(op kernels.Op) operation {
	o := none
	switch op := op.(type) {
	case kernels.Embed:
		o.kind, o.w, o.out, o.blank = opEmbed, op.W, op.Out, op.Blank
	case kernels.RMSNorm:
		o.kind, o.in, o.dst, o.vec, o.eps = opNorm, op.In, op.Out, op.Weight, op.Eps
	case kernels.NormAdd:
		o.kind, o.in, o.out, o.vec, o.eps = opNormAdd, op.In, op.Out, op.Weight, op.Eps
	case kernels.HeadNorm:
		o.kind, o.out, o.vec, o.eps, o.heads, o.headDim = opHeadNorm, op.Buf, op.Weight, op.Eps, op.Heads, len(op.Weight)
	case kernels.Copy:
		o.kind, o.in, o.out = opCopy, op.In, op.Out
	case kernels.Scale:
		o.kind, o.out, o.scale = opScale, op.Buf, op.Factor
	case kernels.PositionScale:
		o.kind, o.out, o.every, o.vec = opPositionScale, op.Buf, op.Every, op.Factors
	case kernels.SoftCap:
		o.kind, o.out, o.scale = opSoftCap, op.Buf, op.Cap
	case kernels.AddBias:
		o.kind, o.out, o.vec = opBias, op.Buf, op.Bias
	case kernels.RoPE:
		o.kind, o.out, o.heads, o.headDim, o.halves = opRoPE, op.Buf, op.Heads, op.HeadDim, op.Rotation.Halves
		o.ropeDim, o.table = 2*len(op.Rotation.InvFreq), l.table(op.Rotation)
	case kernels.Gate:
		o.kind = [...]opKind{kernels.SiLU: opSiLU, kernels.GELU: opGELU, kernels.ClampedSiLU: opClamped}[op.Curve]
		o.in, o.in2, o.dst = op.Gate, op.Up, op.Out
	case kernels.Feed:
		o.kind, o.in, o.dst = opFeed, op.In, op.Out
	case kernels.AddScaled:
		o.kind, o.in, o.out, o.scale = opAddScaled, op.In, op.Out, op.Factor
	case kernels.AddSiLU: // silu(in)·1
		o.kind, o.in, o.out, o.vec = opAddSiLU, op.In, op.Out, slices.Repeat([]float32{1}, l.Buffers[op.In].Dim)
	case kernels.Blend:
		o.kind, o.in, o.in2, o.out = opBlend, op.Gate, op.In, op.Out
	case kernels.SigmoidScale: // blend: σ(gate)·1
		o.kind, o.in, o.out, o.vec = opSigmoidScale, op.Gate, op.Buf, slices.Repeat([]float32{1}, l.Buffers[op.Gate].Dim)
	case kernels.CopyHeads:
		o.kind, o.in, o.out, o.heads, o.headDim, o.from, o.to = opCopyHeads, op.In, op.Out, op.Heads, op.Dim, op.From, op.To
	case kernels.MatMul:
		l.form(op.In, op.W)
		o.kind, o.w, o.src, o.out, o.add, o.concurrent = opMatMul, op.W, op.In, op.Out, op.Add, op.Concurrent
		o.outputs, o.side = op.Outputs.Of(l.Weights[op.W].Rows), int(op.Side)
	case kernels.ChooseExperts:
		o.kind, o.in, o.route, o.vec, o.scale = opChoose, op.Logits, op.Out, op.Bias, op.Scale
		o.sigmoid, o.normed, o.each = op.Sigmoid, op.Normed, op.Each
	case kernels.ExpertMatMul:
		l.form(op.In, op.W)
		o.kind, o.w, o.src, o.out, o.vec, o.concurrent = opExperts, op.W, op.In, op.Out, op.Bias, op.Concurrent
		o.route, o.outputs, o.side, o.dim = op.Route, kernels.Range{To: l.Weights[op.W].Rows}, int(op.Side), l.Weights[op.W].Cols
		return o
	case kernels.JoinExperts:
		o.kind, o.in, o.out, o.route, o.add = opJoinExperts, op.In, op.Out, op.Route, op.Add
	case kernels.StoreKV:
		o.kind, o.in, o.in2, o.layer = opStore, op.V, op.K, op.Layer
	case kernels.Attention:
		o = l.attention(opAttend, op.AttentionOpt, op.Layer, op.Heads)
		o.in, o.dst, o.vec = op.Q, op.Out, op.Sinks
		if op.Gated {
			o.in2 = op.Gate
		}
	case kernels.AttendBlocks:
		o = l.attention(opAttendBlocks, op.AttentionOpt, op.Layer, op.Heads)
		o.in, o.parts, o.side, o.shared = op.Q, op.Out, int(op.Side), op.Shared
	case kernels.JoinBlocks:
		o = l.attention(opJoin, op.AttentionOpt, op.Layer, l.Parts[op.In].Heads)
		o.parts, o.dst, o.vec = op.In, op.Out, op.Sinks
		if op.Gated {
			o.in2 = op.Gate
		}
	case kernels.DeltaNet:
		o.kind, o.in, o.out, o.delta = opDelta, op.In, op.Out, &op
	case kernels.Gather:
		o.kind, o.in, o.out = opGather, op.In, op.Out
	case kernels.TopK:
		o.kind, o.in = opTopK, op.Logits
	case kernels.Meet:
		o.kind = opMeet
		return o
	}
	o.dim, o.wanted = l.rowOf(o)
	return o
}

func (l *lowered) attention(kind opKind, opt kernels.AttentionOpt, layer, heads int) operation {
	o := none
	o.kind, o.layer, o.heads, o.scale, o.window, o.softCap = kind, layer, heads, opt.Scale, opt.Window, opt.SoftCap
	kept, a := l.kv.layers[layer], &l.attn
	a.group, a.mostHeads, a.width = max(a.group, heads/kept.heads), max(a.mostHeads, kept.heads), max(a.width, heads*kept.value)
	if a.leastHeads == 0 || kept.heads < a.leastHeads {
		a.leastHeads = kept.heads
	}
	return o
}

// partsOf records how the heads of Parts are grouped. A half of a divided pass may join what the other has computed.
func (l *lowered) partsOf(op kernels.Op) error {
	var layer, heads int
	var of kernels.Parts
	switch o := op.(type) {
	case kernels.AttendBlocks:
		layer, heads, of = o.Layer, o.Heads, o.Out
	case kernels.JoinBlocks:
		layer, heads, of = o.Layer, l.Parts[o.In].Heads, o.In
	default:
		return nil
	}
	kept := l.kv.layers[layer]
	here, parts := partHeads{kept.heads, heads / kept.heads}, &l.attn.parts[of]
	if parts.heads > 0 && *parts != here {
		return unsupported("parts %d of layers with %d and %d KV heads", int(of), parts.heads, here.heads)
	}
	*parts = here
	return nil
}

// rowOf returns the number of elements in a row of an operation, and whether it runs on the wanted rows only.
func (l *lowered) rowOf(o operation) (dim int, wanted bool) {
	switch {
	case o.kind == opGather:
		return l.Buffers[o.in].Dim, true
	case o.src >= 0:
		return l.Activations[o.src].Dim, l.Activations[o.src].Wanted
	case o.in >= 0:
		return l.Buffers[o.in].Dim, l.Buffers[o.in].Wanted
	case o.out >= 0:
		return l.Buffers[o.out].Dim, l.Buffers[o.out].Wanted
	}
	return l.Activations[o.dst].Dim, l.Activations[o.dst].Wanted
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

func (l *lowered) table(r kernels.Rotation) int {
	if r.Magnitude == 0 {
		r.Magnitude = 1
	}
	for i, t := range l.angles {
		if t.magnitude == r.Magnitude && t.ahead == r.Ahead && slices.Equal(t.freq, r.InvFreq) {
			return i
		}
	}
	l.angles = append(l.angles, angleTable{slices.Clone(r.InvFreq), r.Magnitude, r.Ahead})
	return len(l.angles) - 1
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
		o.vecs, o.each = append(o.vecs, o.add(4*(len(op.vec)+len(op.each)))), append(o.each, 0)
		if op.kind == opExperts {
			o.each[i] = o.add(C.sizeof_size_t * l.Weights[op.w].Experts)
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
	l, err := lower(p)
	if err != nil {
		return f, err
	}
	for i := range p.Weights {
		f.Weights += int64(p.Weights[i].Bytes())
	}
	f.Page, f.Buffers, f.States = int64(l.kv.page), int64(l.place().size), int64(l.kv.states.Size)
	return f, nil
}

// chain marks runs of operations that touch one row at a time, so that a row passes through all of a
// run in one unit. A chain does not reach into the next stage.
func (l *lowered) chain(cops []C.tk_op) {
	for s := range l.StageCount() {
		from, to := l.stage(s)
		for i := to - 2; i >= from; i-- {
			if l.list[i].byRow() && l.list[i+1].byRow() && l.list[i].wanted == l.list[i+1].wanted {
				cops[i].chain = cops[i+1].chain + 1
			}
		}
	}
}

func (o *operation) byRow() bool {
	switch o.kind {
	case opMatMul, opAttend, opAttendBlocks, opSiLU, opGELU, opClamped, opExperts, opMeet, opDeltaIn, opDelta:
		return false
	}
	return true
}

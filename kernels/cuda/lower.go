package cuda

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
)

// form says which blocks and threads the launches of a kernel have.
type form int

const (
	byColumn form = iota // a thread for each column
	byRow                // a block for each row; so have byHead, turning and storing as tails
	byHead
	turning
	gating // fills by column, what a product's tail may do
	product
	expertProduct
	storing
	attending
	joining
	topChunks
	topJoin
	deltaIn
	deltaWalk
	meeting
)

// item is one kernel's work for one operation.
type item struct {
	kernel        string // of products without the number of rows
	form          form
	c             cOp
	weight        kernels.W
	lanes         bool // a product that has a kernel of more threads for one row
	mapped        bool // a product whose weights are the processor's memory, in its order
	reads, writes []kernels.Buf
	parts         kernels.Parts // None: an attention whose parts nobody sees
}

// placed is a program, and where everything that its kernels need lies in the memory of its runner.
type placed struct {
	*kernels.Program
	layers     []kvLayer
	page       int
	formsOf    []forms
	rotations  []kernels.Rotation
	turns      []int // per operation that turns: its rotation
	heads      int   // most of an attention
	headDim    int   // largest, of values
	vocabulary int   // of TopK

	layout
	both                            layout // of a half: buffers, and where both meet
	bufs, vecs, freqs, tables, acts []int
	routes, shares                  []int
	ids, ops, done, scratch         int
	pairs                           int // that scratch has room for
	room                            int // floats, for states that walks hold, behind the rows of delta nets
	items                           int

	shared bool // a half of a pass, in memory that the processor sees too: couple.go
	flags  int  // where both meet, beside the buffers
}

// forms are the forms in which products read an activation.
type forms struct{ int8, int256, f32 bool }

const (
	mostRows    = 1 << 15 // of a pass: a launch has at most 65535 rows of blocks
	mostDim     = 1024    // of a head: a thread for each element
	scratchMost = 32 << 20
)

// newPlaced checks p and places everything. pages is 0 if there is no cache yet. shared says that p is a half of a pass.
func newPlaced(p *kernels.Program, pages int, shared bool) (*placed, error) {
	order := kernels.Groups32
	if shared {
		order = kernels.Groups16
	}
	if err := p.CheckFor(name, order, shared); err != nil {
		return nil, err
	}
	if p.MaxRows > mostRows {
		return nil, unsupported("passes of %d rows (at most %d)", p.MaxRows, mostRows)
	}
	for _, w := range p.Weights {
		if w.Rows > mostRows*group {
			return nil, unsupported("matrices of %d outputs (%q; at most %d)", w.Rows, w.Name, mostRows*group)
		}
	}
	if err := checkRoutes(p); err != nil {
		return nil, err
	}
	l := &placed{Program: p, shared: shared, formsOf: make([]forms, len(p.Activations)), turns: make([]int, len(p.Ops))}
	if len(p.KV.Layers) > 0 {
		var err error
		if l.layers, l.page, err = layersOf(p.KV); err != nil {
			return nil, err
		}
		for i, k := range p.KV.Layers {
			if _, key, _ := k.Seen(); key > mostDim {
				return nil, unsupported("heads of %d elements (layer %d; at most %d)", key, i, mostDim)
			}
		}
	}
	for i, o := range p.Ops {
		if o, ok := o.(kernels.DeltaNet); ok && o.Dim > mostDelta {
			return nil, unsupported("delta net of heads of %d elements (at most %d)", o.Dim, mostDelta)
		}
		l.look(i, o)
	}
	l.place(pages)
	return l, nil
}

// look notes what an operation needs beside buffers.
func (l *placed) look(i int, o kernels.Op) {
	l.items++
	switch o := o.(type) {
	case kernels.MatMul:
		l.read(o.In, l.Weights[o.W].Type)
	case kernels.ExpertMatMul:
		l.read(o.In, l.Weights[o.W].Type)
	case kernels.RoPE:
		same := func(r kernels.Rotation) bool {
			return r.Magnitude == o.Rotation.Magnitude && r.Ahead == o.Rotation.Ahead && slices.Equal(r.InvFreq, o.Rotation.InvFreq)
		}
		at := slices.IndexFunc(l.rotations, same)
		if at < 0 {
			at = len(l.rotations)
			l.rotations = append(l.rotations, o.Rotation)
			l.items++
		}
		l.turns[i] = at
	case kernels.Attention:
		l.heads, l.headDim = max(l.heads, o.Heads), max(l.headDim, l.valueDim(o.Layer))
		l.items++
	case kernels.TopK:
		l.vocabulary = l.Buffers[o.Logits].Dim
		l.items++
	case kernels.DeltaNet:
		l.items++
	}
}

// read notes that products with weights of a type read an activation.
func (l *placed) read(in kernels.Act, t kernels.Type) {
	f := &l.formsOf[in]
	f.int256, f.int8, f.f32 = f.int256 || t.Super(), f.int8 || t.Quantized() && !t.Super(), f.f32 || !t.Quantized()
}

func (l *placed) kept(layer int) kernels.KVLayer { return l.KV.Layers[l.KV.Kept(layer)] }

func (l *placed) valueDim(layer int) int {
	_, _, value := l.kept(layer).Seen()
	return value
}

func (l *placed) most(wanted bool) int {
	if wanted {
		return l.MaxWanted
	}
	return l.MaxRows
}

func (l *placed) place(pages int) {
	buffers := &l.layout
	if l.shared {
		buffers = &l.both
		l.flags = l.both.add(cpu.FlagBytes)
	}
	for _, b := range l.Buffers {
		l.bufs = append(l.bufs, buffers.add(4*b.Dim*l.most(b.Wanted)))
	}
	for _, o := range l.Ops {
		l.vecs = append(l.vecs, l.add(4*len(kernels.Numbers(o))))
	}
	for _, r := range l.rotations {
		l.freqs = append(l.freqs, l.add(8*len(r.InvFreq)))
		l.tables = append(l.tables, l.add(8*len(r.InvFreq)*l.MaxRows))
	}
	for i, a := range l.Activations {
		l.acts = append(l.acts, l.add(l.actBytes(i, l.most(a.Wanted))))
	}
	for _, r := range l.Routes { // together: they are read at once
		l.routes = append(l.routes, l.add(4*r.Used*l.MaxRows))
	}
	for _, r := range l.Routes {
		l.shares = append(l.shares, l.add(4*r.Used*l.MaxRows))
	}
	l.ids = l.add(4 * (topRow + 2*kernels.MaxTop*l.chunks()) * l.MaxWanted)
	l.ops = l.add((l.items + 2) * opBytes) // with those of a pass's steps
	l.done = l.add(4 * l.units())
	scratch := l.placeDeltas()
	if l.heads > 0 {
		one := 4 * l.heads * (l.headDim + 2)
		l.pairs = max(min(16*l.MaxRows, scratchMost/one), (pages*kernels.PageRows+block-1)/block+1)
		scratch = max(scratch, l.pairs*one)
	}
	l.scratch = l.add(scratch)
}

func (l *placed) chunks() int { return (l.vocabulary + topChunk - 1) / topChunk }

// actBytes returns the size of all forms of an activation.
func (l *placed) actBytes(i, rows int) int {
	a := l.act(i, rows, 0)
	return int(a.x) // the last one ends there
}

// act returns an activation of so many rows that lies at a place; x is set to its end if nobody reads f32.
func (l *placed) act(i, rows int, at Pointer) cAct {
	dim, f := l.Activations[i].Dim, l.formsOf[i]
	a := cAct{dim: int32(dim), wanted: flag(l.Activations[i].Wanted)}
	take := func(bytes int) Pointer {
		p := at
		at += Pointer(round(bytes, 256))
		return p
	}
	if f.int8 {
		a.q, a.scale, a.sum = take(rows*dim), take(4*rows*(dim/32)), take(4*rows*(dim/16))
	}
	if f.int256 {
		a.q256, a.scale256, a.sum256 = take(rows*dim), take(4*rows*(dim/256)), take(4*rows*(dim/16))
	}
	if f.f32 {
		take(4 * rows * dim)
	}
	a.x = at
	return a
}

// Footprint returns what p takes in the GPU's memory, which may be the processor's.
func (d *Device) Footprint(p *kernels.Program) (f kernels.Footprint, err error) {
	l, err := newPlaced(p, 0, false)
	if err != nil {
		return f, err
	}
	space := &f.Own
	if d.chip.Integrated {
		space = &f.Space
	}
	space.Weights = -p.LentBytes()
	for i := range p.Weights {
		space.Weights += int64(p.Weights[i].Bytes())
	}
	space.Page, space.Buffers, space.States = int64(l.page), int64(l.size+l.inputBytes(0)), int64(l.KV.PlaceStates(line).Size)
	return f, nil
}

// lowering makes the items of a placed program whose memory begins at base, and that of its buffers at buffers.
type lowering struct {
	*placed
	base, buffers Pointer
	cache         *cache
	turned        map[int]bool // rotations whose angles are there
}

func (l *lowering) at(offset int) Pointer { return l.base + Pointer(offset) }

func (l *lowering) buf(b kernels.Buf) Pointer { return l.buffers + Pointer(l.bufs[b]) }

func (l *lowering) actOf(a kernels.Act) cAct {
	c := l.act(int(a), l.most(l.Activations[a].Wanted), l.at(l.acts[a]))
	if l.formsOf[a].f32 {
		c.x -= Pointer(round(4*l.most(l.Activations[a].Wanted)*l.Activations[a].Dim, 256))
	} else {
		c.x = 0
	}
	return c
}

// elementwise returns an item on a buffer's columns.
func (l *lowering) elementwise(kernel string, i int, out kernels.Buf, in ...kernels.Buf) item {
	x := item{kernel: kernel, weight: kernels.None, parts: kernels.None, reads: in, writes: []kernels.Buf{out}}
	b := l.Buffers[out]
	x.c = cOp{out: l.buf(out), dim: int32(b.Dim), wanted: flag(b.Wanted), vec: l.at(l.vecs[i])}
	if len(in) > 0 {
		x.c.in, x.c.ld = l.buf(in[0]), int32(l.Buffers[in[0]].Dim)
	}
	if len(in) > 1 {
		x.c.in2 = l.buf(in[1])
	}
	return x
}

// element returns an item of the kernel elements.
func (l *lowering) element(kind int32, i int, out kernels.Buf, in ...kernels.Buf) item {
	x := l.elementwise("elements", i, out, in...)
	x.c.kind = kind
	return x
}

// filling returns an item that fills an activation.
func (l *lowering) filling(kernel string, i int, out kernels.Act, in ...kernels.Buf) item {
	x := item{kernel: kernel, weight: kernels.None, parts: kernels.None, reads: in}
	x.c = cOp{dst: l.actOf(out), in: l.buf(in[0]), vec: l.at(l.vecs[i]), dim: int32(l.Activations[out].Dim)}
	x.c.wanted = x.c.dst.wanted
	if len(in) > 1 {
		x.c.in2 = l.buf(in[1])
	}
	return x
}

// gating returns an item of the kernel fills.
func (l *lowering) gating(kind int32, i int, out kernels.Act, in ...kernels.Buf) item {
	x := l.filling("fills", i, out, in...)
	x.form, x.c.kind = gating, kind
	return x
}

// lower returns the items of operation i.
func (l *lowering) lower(i int) []item {
	switch o := l.Ops[i].(type) {
	case kernels.RMSNorm:
		x := l.filling("rms_norm", i, o.Out, o.In)
		x.form, x.c.kind, x.c.eps = byRow, rowsNorm, o.Eps
		return []item{x}
	case kernels.NormAdd:
		x := l.elementwise("norm_add", i, o.Out, o.In, o.Out)
		x.form, x.c.kind, x.c.eps = byRow, rowsNormAdd, o.Eps
		return []item{x}
	case kernels.HeadNorm:
		x := l.elementwise("head_norm", i, o.Buf, o.Buf)
		x.form, x.c.kind, x.c.eps, x.c.heads, x.c.headDim = byHead, rowsHeadNorm, o.Eps, int32(o.Heads), int32(len(o.Weight))
		return []item{x}
	case kernels.Copy:
		return []item{l.element(rowsCopy, i, o.Out, o.In)}
	case kernels.Scale:
		x := l.element(rowsScale, i, o.Buf, o.Buf)
		x.c.scale = o.Factor
		return []item{x}
	case kernels.PositionScale:
		x := l.element(rowsTurns, i, o.Buf, o.Buf)
		x.c.every, x.c.steps = int32(o.Every), int32(len(o.Factors))
		return []item{x}
	case kernels.SoftCap:
		x := l.element(rowsCap, i, o.Buf, o.Buf)
		x.c.softCap = o.Cap
		return []item{x}
	case kernels.AddBias:
		return []item{l.element(rowsBias, i, o.Buf, o.Buf)}
	case kernels.AddScaled:
		x := l.element(rowsAddScaled, i, o.Out, o.In, o.Out)
		x.c.scale = o.Factor
		return []item{x}
	case kernels.AddSiLU:
		return []item{l.element(rowsAddSiLU, i, o.Out, o.In, o.Out)}
	case kernels.Blend:
		x := l.element(rowsBlend, i, o.Out, o.In, o.Gate)
		x.reads = append(x.reads, o.Out)
		return []item{x}
	case kernels.SigmoidScale:
		x := l.element(rowsSigmoid, i, o.Buf, o.Gate)
		x.reads = append(x.reads, o.Buf)
		return []item{x}
	case kernels.CopyHeads:
		x := l.element(rowsHeads, i, o.Out, o.In)
		x.reads = append(x.reads, o.Out)
		x.c.heads, x.c.headDim, x.c.from, x.c.to = int32(o.Heads), int32(o.Dim), int32(o.From), int32(o.To)
		return []item{x}
	case kernels.Gather:
		return []item{l.element(rowsGather, i, o.Out, o.In)}
	case kernels.Feed:
		return []item{l.gating(fillFeed, i, o.Out, o.In)}
	case kernels.Gate:
		kind := [...]int32{kernels.SiLU: fillSiLU, kernels.GELU: fillGELU, kernels.ClampedSiLU: fillClamped}[o.Curve]
		return []item{l.gating(kind, i, o.Out, o.Gate, o.Up)}
	case kernels.RoPE:
		return l.rope(o, i)
	case kernels.Embed:
		x := l.elementwise("embed_"+l.Weights[o.W].Type.String(), i, o.Out)
		x.weight, x.c.cols, x.c.blank = o.W, int32(l.Weights[o.W].Cols), flag(o.Blank)
		return []item{x}
	case kernels.MatMul:
		return []item{l.matmul(o, i)}
	case kernels.ChooseExperts, kernels.ExpertMatMul, kernels.JoinExperts:
		return []item{l.experts(o, i)}
	case kernels.DeltaNet, kernels.BlockConv:
		return l.acrossRows(o, i)
	case kernels.TopK:
		return l.top(o, i)
	}
	return l.attention(l.Ops[i], i)
}

// acrossRows lowers operations that take something from row to row.
func (l *lowering) acrossRows(o kernels.Op, i int) []item {
	if o, ok := o.(kernels.DeltaNet); ok {
		return l.deltaNet(o, i)
	}
	conv := o.(kernels.BlockConv)
	x := l.elementwise("block_conv", i, conv.Out, conv.In, conv.Weights)
	x.c.cols, x.c.from = int32(l.Buffers[conv.Weights].Dim), int32(conv.From)
	x.c.taps, x.c.group = int32(conv.Taps(int(x.c.dim))), int32(conv.Group)
	return []item{x}
}

func (l *lowering) rope(o kernels.RoPE, i int) (all []item) {
	at := l.turns[i]
	r := l.rotations[at]
	if !l.turned[at] {
		l.turned[at] = true
		all = append(all, item{kernel: "angles", weight: kernels.None, parts: kernels.None,
			c: cOp{freq: l.at(l.freqs[at]), table: l.at(l.tables[at]), dim: int32(len(r.InvFreq)), magnitude: r.Factor(),
				ahead: int32(r.Ahead)}})
	}
	x := l.elementwise("rope", i, o.Buf, o.Buf)
	x.form, x.c.kind = turning, rowsRope
	x.c.table, x.c.heads, x.c.headDim = l.at(l.tables[at]), int32(o.Heads), int32(o.HeadDim)
	x.c.turned, x.c.halves = int32(2*len(r.InvFreq)), flag(o.Rotation.Halves)
	return append(all, x)
}

func (l *lowering) matmul(o kernels.MatMul, i int) item {
	w := &l.Weights[o.W]
	x := l.elementwise("mm_"+w.Type.String()+"_", i, o.Out)
	r := o.Outputs.Of(w.Rows)
	x.lanes = lanes(w.Type)
	x.form, x.weight, x.c.src, x.c.cols, x.c.outputs = product, o.W, l.actOf(o.In), int32(w.Cols), int32(w.Rows)
	x.c.from, x.c.to, x.c.add, x.c.side = int32(r.From), int32(r.To), flag(o.Add), int32(o.Side)
	if o.Add || o.Side != kernels.Whole || r != (kernels.Range{To: w.Rows}) {
		x.reads = []kernels.Buf{o.Out} // what it leaves or adds to
	}
	return x
}

func (l *lowering) top(o kernels.TopK, i int) []item {
	x := l.elementwise("top_chunks", i, o.Logits)
	x.reads, x.writes = x.writes, nil
	x.form, x.c.in, x.c.out = topChunks, x.c.out, 0
	x.c.ids, x.c.chunks, x.c.mostWanted = l.at(l.ids), int32(l.chunks()), int32(l.MaxWanted)
	y := x
	y.kernel, y.form = "top_join", topJoin
	return []item{x, y}
}

// onCache returns an item on a layer's keys and values.
func (l *lowering) onCache(kernel string, f form, layer int, in ...kernels.Buf) item {
	return item{kernel: kernel, form: f, weight: kernels.None, parts: kernels.None, reads: in, c: l.cache.op(layer)}
}

// attention lowers what reads and writes the cache.
func (l *lowering) attention(o kernels.Op, i int) []item {
	attend := func(opt kernels.AttentionOpt, q kernels.Buf, layer, heads int) item {
		x := l.onCache("attend", attending, layer, q)
		x.c.in, x.c.heads, x.c.parts = l.buf(q), int32(heads), l.at(l.scratch)
		x.c.scale, x.c.window, x.c.softCap, x.c.later = opt.Scale, int32(opt.Window), opt.SoftCap, flag(opt.Later)
		return x
	}
	join := func(o kernels.JoinBlocks, heads int) item {
		x := item{kernel: "join", form: joining, weight: kernels.None, parts: kernels.None}
		x.c = cOp{parts: l.at(l.scratch), dst: l.actOf(o.Out), heads: int32(heads), window: int32(o.Window),
			later: flag(o.Later)}
		kvHeads, _, value := l.kept(o.Layer).Seen()
		x.c.kvHeads, x.c.valueDim = int32(kvHeads), int32(value)
		x.c.vec, x.c.biased = l.at(l.vecs[i]), flag(o.Sinks != nil)
		if o.Gated {
			x.c.in, x.reads = l.buf(o.Gate), []kernels.Buf{o.Gate}
		}
		return x
	}
	switch o := o.(type) {
	case kernels.StoreKV:
		x := l.onCache("store", storing, o.Layer, o.V)
		x.c.kind, x.c.in2 = rowsStore, l.buf(o.V)
		if o.K != kernels.None { // otherwise a compressed layer whose keys do not turn
			x.c.in, x.reads = l.buf(o.K), []kernels.Buf{o.K, o.V}
		}
		return []item{x}
	case kernels.Attention:
		_, joined := o.Blocks(kernels.None, kernels.Whole, 0)
		return []item{attend(o.AttentionOpt, o.Q, o.Layer, o.Heads), join(joined, o.Heads)}
	case kernels.AttendBlocks:
		x := attend(o.AttentionOpt, o.Q, o.Layer, o.Heads)
		x.parts, x.c.side, x.c.shared, x.c.tiled = o.Out, int32(o.Side), int32(o.Shared), flag(l.shared)
		return []item{x}
	case kernels.Meet:
		return []item{l.meet()}
	case kernels.JoinBlocks:
		x := join(o, l.Parts[o.In].Heads)
		x.parts, x.c.tiled = o.In, flag(l.shared)
		return []item{x}
	}
	panic(fmt.Sprintf("cuda: operation %T", o)) // newPlaced has refused it
}

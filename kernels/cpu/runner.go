package cpu

// #include "tk.h"
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/tandem-llm/tandem/kernels"
)

// runner is a kernels.Runner: one block of memory with the C operation list, the buffers
// and the results, and a second one, which grows, for the inputs of a pass.
type runner struct {
	dev       *Device
	plan      *lowered
	at        *offsets
	weights   kernels.Weights
	limits    kernels.PassLimits
	cache     *Cache
	mem, pass *Memory // nil once closed
	prog      *C.tk_prog
	ops       []C.tk_op
	reads     [][]kernels.W // per stage: StageWeights
	bindings  [][]binding   // per stage
	bound     bool          // to resident weights, for all passes

	topIDs                    []int32
	topLogits, topMax, topSum []float32
	wantedRows, topk, vocab   int // of the last pass
	started                   bool
	half                      half
	times                     *Memory // of (threads, operations); empty unless Time is on
}

// Compile lays out buffers and the operation list of a program.
func (d *Device) Compile(p *kernels.Program, w kernels.Weights, c kernels.Cache) (kernels.Runner, error) {
	if slices.Contains(p.Ops, kernels.Op(kernels.Meet{})) {
		return nil, unsupported("meeting of another device")
	}
	r, err := d.compile(p, w, c, half{whole: p})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// half is a part of a divided pass: of a whole program, whose weights it has. Its buffers are those of another runner, or its own.
type half struct {
	whole *kernels.Program
	of    *runner
}

func (d *Device) compile(p *kernels.Program, w kernels.Weights, c kernels.Cache, h half) (*runner, error) {
	l, err := lower(p)
	if err != nil {
		return nil, err
	}
	l.borrows, l.repeats = h.of != nil, d.repeat > 1
	cache, err := cacheOf(p, c)
	if err != nil {
		return nil, err
	}
	if w == nil && len(p.Weights) > 0 {
		return nil, fmt.Errorf("kernels: a program with %d weights compiled without any", len(p.Weights))
	}
	r := &runner{dev: d, plan: l, at: l.place(), weights: w, cache: cache, pass: &Memory{}, times: &Memory{}, half: h}
	if r.mem, err = Alloc(r.at.size); err != nil {
		return nil, err
	}
	if cache != nil {
		r.limits = p.PassLimits(cache.pages)
	} else {
		r.limits = p.PassLimits(0)
	}
	r.prog = (*C.tk_prog)(r.mem.at(r.at.prog))
	r.fillProg(cache)
	r.fillRoutes()
	r.ops = view[C.tk_op](r.mem, r.at.ops, len(l.list))
	r.prog.ops, r.prog.sync = (*C.tk_op)(r.mem.at(r.at.ops)), (*C.tk_sync)(r.mem.at(r.at.sync))
	for i, o := range l.list {
		r.fillOp(&r.ops[i], o, i)
	}
	for i, j := 0, 0; i < len(l.list); i++ {
		if l.list[i].kind == opDeltaIn {
			r.fillDelta(r.ops, i, r.at.deltas[j])
			j++
		}
	}
	l.chain(r.ops)
	for s := range p.StageCount() {
		from, to := l.stage(s)
		all := h.whole.StageWeights(s)
		var b []binding
		for i := from; i < to; i++ {
			if w := l.list[i].w; w >= 0 {
				b = append(b, binding{i, slices.Index(all, w)})
			}
		}
		r.reads, r.bindings = append(r.reads, all), append(r.bindings, b)
	}
	return r, nil
}

// cacheOf checks that c is what p wants.
func cacheOf(p *kernels.Program, c kernels.Cache) (*Cache, error) {
	if len(p.KV.Layers) == 0 {
		return nil, nil
	}
	cache, ok := c.(*Cache)
	switch {
	case !ok:
		return nil, fmt.Errorf("kernels: a KV cache of type %T, want one that this device has made", c)
	case !cache.shape.Equal(p.KV):
		return nil, errors.New("kernels: the KV cache is not of the shape that the program wants")
	}
	return cache, nil
}

func (r *runner) fillProg(cache *Cache) {
	l, c, m := r.plan, r.prog, r.mem
	wanted := l.MaxWanted
	r.topIDs = view[int32](m, r.at.ids, wanted*kernels.MaxTop)
	r.topLogits = view[float32](m, r.at.ids+wanted*kernels.MaxTop*4, wanted*kernels.MaxTop)
	r.topMax, r.topSum = view[float32](m, r.at.sums, wanted), view[float32](m, r.at.sums+wanted*4, wanted)
	c.nops = C.int(len(l.list))
	if len(r.at.deltas) > 0 {
		c.delta_rows = (*C.float)(m.at(r.at.deltaRows))
	}
	if c.repeat = C.int(r.dev.repeat); l.repeats {
		c.dummy = (*C.float)(m.at(r.at.dummy))
	}
	for _, o := range l.list {
		c.max_dim = max(c.max_dim, C.int(o.dim))
		if o.kind == opTopK {
			r.vocab = o.dim
		}
	}
	if wanted > 0 {
		c.top_ids, c.top_logits = (*C.int32_t)(unsafe.Pointer(&r.topIDs[0])), (*C.float)(unsafe.Pointer(&r.topLogits[0]))
		c.top_max, c.top_sum = (*C.float)(unsafe.Pointer(&r.topMax[0])), (*C.float)(unsafe.Pointer(&r.topSum[0]))
	}
	for i, t := range l.angles {
		copy(view[float64](m, r.at.freqs[i], len(t.freq)), t.freq)
	}
	if cache == nil {
		return
	}
	kv, layers := &c.kv, view[C.tk_kept](m, r.at.keptLayers, len(cache.layers))
	for i, k := range cache.layers {
		layers[i] = C.tk_kept{heads: C.int(k.heads), dim: C.int(k.dim), value_dim: C.int(k.value), latent: flag(k.latent),
			at: C.size_t(k.at), head_bytes: C.size_t(k.head), values: C.size_t(k.values), value_row: C.size_t(k.valueRow),
			value_scales: C.size_t(k.valueScales)}
	}
	kv.layers, kv.page_bytes, kv._type = &layers[0], C.size_t(cache.page), C.int(cache.shape.Type)
	kv.arena = (*C.uint8_t)(unsafe.Pointer(&cache.mem.b[0]))
	if l.attn.group == 0 {
		return
	}
	c.max_group, c.max_heads, c.min_heads = C.int(l.attn.group), C.int(l.attn.mostHeads), C.int(l.attn.leastHeads)
	c.attn_out, c.runs = (*C.float)(m.at(r.at.attnOut)), (*C.tk_run)(m.at(r.at.runs))
	c.done = (*C.int32_t)(m.at(r.at.done))
	if n := len(l.Parts); n > 0 {
		c.parts, c.nparts = (*C.tk_parts)(m.at(r.at.partList)), C.int(n)
		for i, s := range l.attn.parts {
			view[C.tk_parts](m, r.at.partList, n)[i] = C.tk_parts{heads: C.int(s.heads), group: C.int(s.group), dim: C.int(l.Parts[i].Dim)}
		}
	}
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func (r *runner) floats(b kernels.Buf) *C.float {
	if b < 0 || (r.plan.Buffers[b].Wanted && r.plan.MaxWanted == 0) {
		return nil
	}
	if of := r.half.of; of != nil {
		return of.floats(b)
	}
	return (*C.float)(r.mem.at(r.at.bufs[b]))
}

// actForms returns an activation for C with all forms that are read.
func (r *runner) actForms(a kernels.Act) (t C.tk_act) {
	if a < 0 || (r.plan.Activations[a].Wanted && r.plan.MaxWanted == 0) {
		return t
	}
	x, f := r.plan.Activations[a], r.plan.forms[a]
	t.dim, t.wanted = C.int(x.Dim), flag(x.Wanted)
	if f.int8 {
		t.q = (*C.tk_qblock)(r.mem.at(r.at.q[a]))
	}
	if f.int256 {
		t.q256 = (*C.tk_qblock)(r.mem.at(r.at.q256[a]))
	}
	if f.f32 {
		t.x = (*C.float)(r.mem.at(r.at.f32[a]))
	}
	return t
}

// actForm returns an activation for C with only the form that products with type w read.
func (r *runner) actForm(a kernels.Act, w kernels.Type) C.tk_act {
	t := r.actForms(a)
	if !w.Super() {
		t.q256 = nil
	}
	if !w.Quantized() || w.Super() {
		t.q = nil
	}
	if w.Quantized() {
		t.x = nil
	}
	return t
}

func (r *runner) fillOp(c *C.tk_op, o operation, i int) {
	c.kind, c.concurrent, c.wanted = C.int(o.kind), flag(o.concurrent), flag(o.wanted)
	c.dim, c.add, c.halves = C.int(o.dim), flag(o.add), flag(o.halves)
	c.layer, c.heads, c.head_dim, c.rope_dim = C.int(o.layer), C.int(o.heads), C.int(o.headDim), C.int(o.ropeDim)
	c.eps, c.scale = C.float(o.eps), C.float(o.scale)
	c.window, c.softcap = C.int(o.window), C.float(o.softCap)
	c.from, c.to = C.int(o.from), C.int(o.to)
	c.every, c.steps = C.int(o.every), C.int(len(o.vec))
	c.side, c.shared, c.parts = C.int(o.side), C.int(o.shared), C.int(o.parts)
	c.route, c.sigmoid, c.normed = C.int(o.route), flag(o.sigmoid), flag(o.normed)
	c.in, c.in2, c.out = r.floats(o.in), r.floats(o.in2), r.floats(o.out)
	c.ahead, c.blank = C.int(o.ahead), flag(o.blank)
	if len(o.vec) > 0 {
		copy(view[float32](r.mem, r.at.vecs[i], len(o.vec)), o.vec)
		c.vec = (*C.float)(r.mem.at(r.at.vecs[i]))
	}
	if n := len(o.vec); len(o.each) > 0 {
		copy(view[float32](r.mem, r.at.vecs[i], n+len(o.each))[n:], o.each)
		c.each = (*C.float)(r.mem.at(r.at.vecs[i] + 4*n))
	}
	if o.out >= 0 {
		c.ldo = C.size_t(r.plan.Buffers[o.out].Dim)
	}
	if o.table >= 0 {
		c.angles = (*C.float)(r.mem.at(r.at.tables[o.table]))
		c.freq = (*C.double)(r.mem.at(r.at.freqs[o.table]))
	}
	c.dst = r.actForms(o.dst)
	if o.w < 0 {
		return
	}
	w := &r.plan.Weights[o.w]
	c.src = r.actForm(o.src, w.Type)
	c.expert_bytes = C.size_t(w.Each())
	if o.kind == opExperts {
		c.each_w = (**C.uint8_t)(r.mem.at(r.at.each[i]))
	}
	c._type, c.cols, c.gbytes = C.int(w.Type), C.int(w.Rows), C.size_t(groupBytes(w))
	c.first_group = C.int(o.outputs.From / lanes)
	c.groups = C.int((o.outputs.To+lanes-1)/lanes) - c.first_group
}

// Run runs all stages. With resident weights that is one call of the threads.
func (r *runner) Run(a *kernels.Pass) error {
	if err := r.Start(a); err != nil {
		return err
	}
	r.started = false
	if !r.resident() {
		for i := range r.bindings {
			if err := r.stage(i); err != nil {
				return err
			}
		}
		return nil
	}
	if err := r.bindAll(); err != nil {
		return err
	}
	return r.dev.run(r.prog, 0, len(r.ops))
}

// Start checks the pass and copies it into memory that C may read.
func (r *runner) Start(a *kernels.Pass) error {
	if r.mem == nil {
		return errFreed
	}
	if err := r.limits.Check(a); err != nil {
		return err
	}
	if err := r.setPass(a); err != nil {
		return err
	}
	r.wantedRows, r.topk, r.started = len(a.Wanted), min(a.TopK, r.vocab), true
	return nil
}

var errFreed = errors.New("kernels: the runner is closed")

// Stage runs one stage of the pass that is started.
func (r *runner) Stage(i int) error {
	switch {
	case r.mem == nil:
		return errFreed
	case !r.started || i < 0 || i >= len(r.bindings):
		return fmt.Errorf("kernels: stage %d of %d, want one of a pass that is started", i, len(r.bindings))
	}
	r.started = i+1 < len(r.bindings)
	return r.stage(i)
}

// Stages runs stages of the pass that is started: with resident weights in one call of the threads.
func (r *runner) Stages(from, to int) error {
	if r.mem == nil || !r.started || !r.resident() || from < 0 || to > len(r.bindings) || from >= to {
		for i := from; i < to; i++ {
			if err := r.Stage(i); err != nil {
				return err
			}
		}
		return nil
	}
	if err := r.bindAll(); err != nil {
		return err
	}
	r.started = to < len(r.bindings)
	first, _ := r.plan.stage(from)
	_, end := r.plan.stage(to - 1)
	return r.dev.run(r.prog, first, end)
}

func (r *runner) stage(i int) error {
	if r.resident() {
		if err := r.bindAll(); err != nil {
			return err
		}
	} else {
		if err := r.bind(i); err != nil {
			return err
		}
		defer r.release(i)
	}
	from, to := r.plan.stage(i)
	return r.dev.run(r.prog, from, to)
}

// setPass copies the pass into memory that C may read.
func (r *runner) setPass(a *kernels.Pass) error {
	c := &r.prog.pass
	lists := []struct {
		src []int32
		dst **C.int32_t
	}{
		{a.Tokens, &c.tokens}, {a.Pos, &c.pos}, {cells(a.Store), &c.store}, {a.Pages, &c.pages}, {a.Table, &c.table}, {a.Prefix, &c.prefix},
		{cells(a.Anc), &c.anc}, {a.AncOff, &c.anc_off}, {a.AncLen, &c.anc_len}, {a.Cut, &c.cut}, {a.Wanted, &c.wanted},
	}
	need := 64 + 4*len(a.Given) + walkBytes(a)
	for _, l := range lists {
		need += 4 * len(l.src)
	}
	if need > len(r.pass.b) {
		mem, err := Alloc(max(4096, 2*need))
		if err != nil {
			return err
		}
		r.pass.Free()
		r.pass = mem
	}
	all, off := view[int32](r.pass, 0, need/4), 0
	for _, l := range lists {
		copy(all[off:], l.src)
		*l.dst = (*C.int32_t)(&all[off])
		off += len(l.src)
	}
	r.setWalks(a, 4*off)
	off += walkBytes(a) / 4
	given := view[float32](r.pass, 4*off, len(a.Given)+1)
	copy(given, a.Given)
	c.given = (*C.float)(&given[0])
	c.rows, c.nwanted, c.topk, c.left = C.int(a.Rows), C.int(len(a.Wanted)), C.int(a.TopK), C.int(a.Left)
	return nil
}

func cells(c []kernels.Cell) []int32 {
	if len(c) == 0 {
		return nil
	}
	return unsafe.Slice((*int32)(unsafe.Pointer(&c[0])), len(c))
}

// Row returns row i of a buffer.
func (r *runner) Row(b kernels.Buf, i int) []float32 {
	if r.mem == nil || b < 0 || int(b) >= len(r.plan.Buffers) {
		return nil
	}
	rows, dim := r.plan.MaxRows, r.plan.Buffers[b].Dim
	if r.plan.Buffers[b].Wanted {
		rows = r.plan.MaxWanted
	}
	if i < 0 || i >= rows {
		return nil
	}
	return view[float32](r.mem, r.at.bufs[b]+4*i*dim, dim)
}

// Top returns what TopK found in wanted row i.
func (r *runner) Top(i int) kernels.Top {
	if r.mem == nil || i < 0 || i >= r.wantedRows || r.vocab == 0 {
		return kernels.Top{}
	}
	at := i * kernels.MaxTop
	return kernels.Top{IDs: r.topIDs[at : at+r.topk], Logits: r.topLogits[at : at+r.topk], Max: r.topMax[i], Sum: r.topSum[i]}
}

// Part returns where the result of a block lies.
func (r *runner) Part(p kernels.Parts, row, block, head int) kernels.Part {
	if r.mem == nil || p < 0 || int(p) >= len(r.plan.Parts) || head < 0 || head >= r.plan.Parts[p].Heads {
		return kernels.Part{}
	}
	at := C.tk_part_at(r.prog, C.int(p), C.int(row), C.int(block), C.int(head))
	if at == nil {
		return kernels.Part{}
	}
	dim := r.plan.Parts[p].Dim
	padded := (dim + 15) &^ 15
	all := unsafe.Slice((*float32)(unsafe.Pointer(at)), padded+2)
	return kernels.Part{Max: &all[padded], Sum: &all[padded+1], O: all[:dim:dim]}
}

// Close frees the memory once no thread uses it any more.
func (r *runner) Close() {
	if r.mem == nil {
		return
	}
	r.dev.quiet()
	C.tk_prog_release(r.prog)
	r.mem.Free()
	r.pass.Free()
	r.times.Free()
	r.mem = nil
}

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
	program   *lowered
	at        *offsets
	weights   kernels.Weights
	checked   kernels.Checked // weights that leave comparing checksums to this runner; nil: they do not
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
	wantedRows, topk          int // of the last pass
	started                   bool
	half                      half
	times                     *Memory // of (threads, operations); empty unless Time is on
}

// Compile lays out buffers and the operation list of a program.
func (d *Device) Compile(p *kernels.Program, w kernels.Weights, c kernels.Cache) (kernels.Runner, error) {
	r, err := d.compile(p, w, c, half{whole: p})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// half is a part of a divided pass: of a whole program, whose weights it has. Its buffers are those of another runner, or its own.
type half struct {
	whole   *kernels.Program
	of      *runner
	coupled bool    // it runs together with the other half
	shared  *Shared // the other half is another device's
}

func (d *Device) compile(p *kernels.Program, w kernels.Weights, c kernels.Cache, h half) (*runner, error) {
	l, err := lower(p, h.coupled)
	if err != nil {
		return nil, err
	}
	l.borrows, l.repeats = h.of != nil || h.shared != nil, d.repeat > 1
	cache, err := kernels.CacheFor[*Cache](p, c)
	if err != nil {
		return nil, err
	}
	if w == nil && len(p.Weights) > 0 {
		return nil, fmt.Errorf("kernels: a program with %d weights compiled without any", len(p.Weights))
	}
	r := &runner{dev: d, program: l, at: l.place(), weights: w, cache: cache, pass: &Memory{}, times: &Memory{}, half: h}
	if r.checked, _ = w.(kernels.Checked); r.checked != nil {
		r.checked.Unchecked()
	}
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
	deltas := r.at.deltas
	for i := range l.list {
		r.fillOp(&r.ops[i], i)
		r.prog.max_dim = max(r.prog.max_dim, r.ops[i].dim)
		if l.list[i].inputs {
			r.fillDelta(r.ops, i, deltas[0])
			deltas = deltas[1:]
		}
	}
	l.chain(r.ops)
	for s := range p.StageCount() {
		from, to := l.stage(s)
		all := h.whole.StageWeights(s)
		var b []binding
		for i := from; i < to; i++ {
			if w := l.weightOf(i); w != kernels.None {
				b = append(b, binding{i, slices.Index(all, w)})
			}
		}
		r.reads, r.bindings = append(r.reads, all), append(r.bindings, b)
	}
	return r, nil
}

func (r *runner) fillProg(cache *Cache) {
	l, c, m := r.program, r.prog, r.mem
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
	r.wantedRows, r.topk, r.started = len(a.Wanted), min(a.TopK, r.program.vocabulary), true
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
	first, _ := r.program.stage(from)
	_, end := r.program.stage(to - 1)
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
	from, to := r.program.stage(i)
	if err := r.dev.run(r.prog, from, to); err != nil {
		return err
	}
	return r.compared(i)
}

// setPass copies the pass into memory that C may read.
func (r *runner) setPass(a *kernels.Pass) error {
	c := &r.prog.pass
	lists := []struct {
		src []int32
		dst **C.int32_t
	}{
		{a.Tokens, &c.tokens}, {a.Pos, &c.pos}, {a.Turns(), &c.turn}, {cells(a.Store), &c.store}, {a.Pages, &c.pages},
		{a.Table, &c.table}, {a.Prefix, &c.prefix}, {cells(a.Anc), &c.anc},
		{a.AncOff, &c.anc_off}, {a.AncLen, &c.anc_len}, {a.Cut, &c.cut}, {a.Wanted, &c.wanted},
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
	if r.mem == nil || b < 0 || int(b) >= len(r.program.Buffers) {
		return nil
	}
	rows, dim := r.program.MaxRows, r.program.Buffers[b].Dim
	if r.program.Buffers[b].Wanted {
		rows = r.program.MaxWanted
	}
	if i < 0 || i >= rows {
		return nil
	}
	return view[float32](r.mem, r.at.bufs[b]+4*i*dim, dim)
}

// Top returns what TopK found in wanted row i.
func (r *runner) Top(i int) kernels.Top {
	if r.mem == nil || i < 0 || i >= r.wantedRows || r.program.vocabulary == 0 {
		return kernels.Top{}
	}
	at := i * kernels.MaxTop
	return kernels.Top{IDs: r.topIDs[at : at+r.topk], Logits: r.topLogits[at : at+r.topk], Max: r.topMax[i], Sum: r.topSum[i]}
}

// Part returns where the result of a block lies.
func (r *runner) Part(p kernels.Parts, row, block, head int) kernels.Part {
	if r.mem == nil || p < 0 || int(p) >= len(r.program.Parts) || head < 0 || head >= r.program.Parts[p].Heads {
		return kernels.Part{}
	}
	at := C.tk_part_at(r.prog, C.int(p), C.int(row), C.int(block), C.int(head))
	if at == nil {
		return kernels.Part{}
	}
	dim := r.program.Parts[p].Dim
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

package kernels

// #include "tk.h"
import "C"

import (
	"errors"
	"unsafe"
)

// maxTop is the most values TopK returns for a row.
const maxTop = C.TK_MAXTOP

// sealed is what a program needs to run: one block of memory with the C operation list, the buffers,
// and the results; and a second one for the numbers of a pass, which grows.
type sealed struct {
	mem, pass                 *Memory
	prog                      *C.tk_prog
	lastPool                  *Pool
	topIDs                    []int32
	topLogits, topMax, topSum []float32
	wantedRows                int // of the last pass
	topk, vocab               int
	embedRows                 int // smallest matrix that tokens index; 0 without one
}

// Seal ends the plan: it allocates buffers and builds the C operation list. It returns the first
// mistake of the plan, or that memory is short.
func (p *Program) Seal() error {
	if p.sealed != nil {
		p.fail("program sealed twice")
	}
	if len(p.ops) == 0 {
		p.fail("program without operations")
	}
	if p.err != nil {
		return p.err
	}
	list := p.ordered()
	var l layout
	prog := l.add(C.sizeof_tk_prog)
	ops := l.add(len(list) * C.sizeof_tk_op)
	sync := l.add(len(list) * int(C.tk_sync_bytes()))
	vecs := make([]int, len(list))
	for i, o := range list {
		vecs[i] = l.add(4 * len(o.vec))
	}
	freqs := make([]int, len(p.angles))
	for i, t := range p.angles {
		freqs[i] = l.add(8 * len(t.freq))
		p.angles[i].off = l.add(p.maxRows * 2 * len(t.freq) * 4)
	}
	p.layBuffers(&l)
	results := l.add(p.maxWanted * maxTop * 8)
	sums := l.add(p.maxWanted * 8)
	attn := p.layAttention(&l)
	mem, err := Alloc(l.size)
	if err != nil {
		return err
	}
	s := &sealed{mem: mem, pass: &Memory{}, prog: (*C.tk_prog)(mem.at(prog))}
	s.topIDs = view[int32](mem, results, p.maxWanted*maxTop)
	s.topLogits = view[float32](mem, results+p.maxWanted*maxTop*4, p.maxWanted*maxTop)
	s.topMax = view[float32](mem, sums, p.maxWanted)
	s.topSum = view[float32](mem, sums+p.maxWanted*4, p.maxWanted)
	for i, t := range p.angles {
		copy(view[float64](mem, freqs[i], len(t.freq)), t.freq)
	}
	p.sealed = s
	p.fillProg(list, attn)
	s.prog.ops, s.prog.sync = (*C.tk_op)(mem.at(ops)), (*C.tk_sync)(mem.at(sync))
	cops := view[C.tk_op](mem, ops, len(list))
	for i, o := range list {
		copy(view[float32](mem, vecs[i], len(o.vec)), o.vec)
		p.fillOp(&cops[i], o, vecs[i])
		if o.kind == opAngles {
			cops[i].freq = (*C.double)(mem.at(freqs[o.table]))
		}
	}
	chain(list, cops)
	return nil
}

// ordered returns the plan with the operations that compute angles in front.
func (p *Program) ordered() []operation {
	var list []operation
	for i, t := range p.angles {
		o := none
		o.kind, o.table, o.ropeDim, o.dim = opAngles, i, 2*len(t.freq), 2*len(t.freq)
		o.scale = t.magnitude
		list = append(list, o)
	}
	return append(list, p.ops...)
}

func (p *Program) layBuffers(l *layout) {
	rows := func(wanted bool) int {
		if wanted {
			return p.maxWanted
		}
		return p.maxRows
	}
	for i := range p.bufs {
		b := &p.bufs[i]
		b.off = l.add(rows(b.wanted) * b.dim * 4)
	}
	for i := range p.acts {
		a := &p.acts[i]
		if a.int8 {
			a.offQ = l.add(rows(a.wanted) * (a.dim / 32) * C.sizeof_tk_qblock)
		}
		if a.int256 {
			a.off256 = l.add(rows(a.wanted) * (a.dim / 32) * C.sizeof_tk_qblock)
		}
		if a.f32 {
			a.offF32 = l.add(rows(a.wanted) * a.dim * 4)
		}
	}
}

type attentionLayout struct{ out, runs, left, heads int }

func (p *Program) layAttention(l *layout) (a attentionLayout) {
	for _, o := range p.ops {
		if o.kind == opAttend {
			a.heads = max(a.heads, o.heads)
		}
	}
	a.out = l.add(p.maxRows * a.heads * p.kv.HeadDim * 4)
	a.runs = l.add(p.maxRows * C.sizeof_tk_run)
	a.left = l.add(p.maxRows * (p.kv.KVHeads + 1) * 4)
	return a
}

func (p *Program) fillProg(list []operation, a attentionLayout) {
	s, c := p.sealed, p.sealed.prog
	c.nops = C.int(len(list))
	c.broken = flag(p.widthDependent)
	for _, o := range list {
		c.max_dim = max(c.max_dim, C.int(o.dim))
		if o.kind == opTopK {
			s.vocab = o.dim
		}
		if o.kind == opEmbed && (s.embedRows == 0 || o.w.rows < s.embedRows) {
			s.embedRows = o.w.rows
		}
	}
	if p.maxWanted > 0 {
		c.top_ids = (*C.int32_t)(unsafe.Pointer(&s.topIDs[0]))
		c.top_logits = (*C.float)(unsafe.Pointer(&s.topLogits[0]))
		c.top_max = (*C.float)(unsafe.Pointer(&s.topMax[0]))
		c.top_sum = (*C.float)(unsafe.Pointer(&s.topSum[0]))
	}
	if a.heads == 0 {
		if len(p.arena) > 0 {
			p.fillKV()
		}
		return
	}
	p.fillKV()
	c.max_group = C.int(a.heads / p.kv.KVHeads)
	c.attn_out = (*C.float)(s.mem.at(a.out))
	c.runs = (*C.tk_run)(s.mem.at(a.runs))
	c.left = (*C.int32_t)(s.mem.at(a.left))
}

func (p *Program) fillKV() {
	kv, l := &p.sealed.prog.kv, p.kv.layout()
	kv.layers, kv.kv_heads, kv.head_dim, kv._type = C.int(p.kv.Layers), C.int(p.kv.KVHeads), C.int(p.kv.HeadDim), C.int(p.kv.Type)
	kv.head_bytes, kv.values = C.size_t(l.head), C.size_t(l.values)
	kv.value_row, kv.value_scales = C.size_t(l.valueRow), C.size_t(l.valueScales)
	kv.arena = (*C.uint8_t)(unsafe.Pointer(&p.arena[0]))
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func (p *Program) floats(b Buf) *C.float {
	if b < 0 || (p.bufs[b].wanted && p.maxWanted == 0) {
		return nil
	}
	return (*C.float)(p.sealed.mem.at(p.bufs[b].off))
}

// actForms returns an activation for C with all its forms.
func (p *Program) actForms(a Act) (t C.tk_act) {
	if a < 0 || (p.acts[a].wanted && p.maxWanted == 0) {
		return t
	}
	x := p.acts[a]
	t.dim, t.wanted = C.int(x.dim), flag(x.wanted)
	if x.int8 {
		t.q = (*C.tk_qblock)(p.sealed.mem.at(x.offQ))
	}
	if x.int256 {
		t.q256 = (*C.tk_qblock)(p.sealed.mem.at(x.off256))
	}
	if x.f32 {
		t.x = (*C.float)(p.sealed.mem.at(x.offF32))
	}
	return t
}

// actForm returns an activation for a C reader: only the form that products with type w read.
func (p *Program) actForm(a Act, w Type) C.tk_act {
	t := p.actForms(a)
	if !w.super() {
		t.q256 = nil
	}
	if !w.Quantized() || w.super() {
		t.q = nil
	}
	if w.Quantized() {
		t.x = nil
	}
	return t
}

func (p *Program) fillOp(c *C.tk_op, o operation, vec int) {
	c.kind, c.concurrent, c.wanted = C.int(o.kind), flag(o.concurrent), flag(o.wanted)
	c.dim, c.add, c.halves = C.int(o.dim), flag(o.add), flag(o.halves)
	c.layer, c.heads, c.head_dim, c.rope_dim = C.int(o.layer), C.int(o.heads), C.int(o.headDim), C.int(o.ropeDim)
	c.eps, c.scale = C.float(o.eps), C.float(o.scale)
	c.window, c.softcap = C.int(o.window), C.float(o.softCap)
	c.in, c.in2, c.out = p.floats(o.in), p.floats(o.in2), p.floats(o.out)
	if len(o.vec) > 0 {
		c.vec = (*C.float)(p.sealed.mem.at(vec))
	}
	if o.out >= 0 {
		c.ldo = C.size_t(p.bufs[o.out].dim)
	}
	if o.table >= 0 {
		c.angles = (*C.float)(p.sealed.mem.at(p.angles[o.table].off))
	}
	c.dst = p.actForms(o.dst)
	if o.w == nil {
		return
	}
	c.src = p.actForm(o.src, o.w.typ)
	c._type, c.cols = C.int(o.w.typ), C.int(o.w.rows)
	c.g0, c.g1 = C.int(o.group0), C.int(o.group)
	c.w, c.gbytes = (*C.uint8_t)(unsafe.Pointer(&o.w.mem[0])), C.size_t(groupBytes(o.w.typ, o.w.cols))
}

// chain marks runs of operations that touch one row at a time, so that a row passes through all of a
// run in one unit.
func chain(list []operation, cops []C.tk_op) {
	for i := len(list) - 2; i >= 0; i-- {
		if list[i].byRow() && list[i+1].byRow() && list[i].wanted == list[i+1].wanted {
			cops[i].chain = cops[i+1].chain + 1
		}
	}
}

func (o *operation) byRow() bool {
	switch o.kind {
	case opMatMul, opAttend, opSiLU, opGELU:
		return false
	}
	return true
}

// Bytes returns the memory that the sealed program holds, KV and weights not included.
func (p *Program) Bytes() int {
	if p.sealed == nil {
		return 0
	}
	return len(p.sealed.mem.b) + len(p.sealed.pass.b) + int(p.sealed.prog.part_cap)*4
}

// Free gives the program's memory back; what Rows and Top returned ends with it. A second Free does
// nothing.
func (p *Program) Free() {
	s := p.sealed
	if s == nil {
		return
	}
	if s.lastPool != nil {
		s.lastPool.quiet()
	}
	C.tk_prog_release(s.prog)
	s.mem.Free()
	s.pass.Free()
	p.sealed = nil
	p.fail("program freed")
}

var errNotSealed = errors.New("kernels: the program is not sealed")

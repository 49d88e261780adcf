package kernels

import (
	"errors"
	"fmt"
	"math"
)

// Program is a list of operations over buffers, planned once for a model, sealed, and then run by one C
// call per pass with the rows of that pass.
//
// Stages: New; Buf, Act and SetKV name what there is; operations are added in the order in which they
// run; Seal allocates everything and hands the list to C; Run, then Rows and Top; Free.
//
// Invariants:
//  1. An operation ends before the next starts, unless it is a MatMul with Concurrent. Neighbouring
//     operations that touch one row at a time (norms, biases, RoPE, storing K and V) are chained: one
//     thread takes a row through all of them.
//  2. An Act is filled by one operation and made in the forms that matmuls with it need: f32, or int8
//     with scales; the plan knows which, so a row is quantised once for all its readers.
//  3. No operation's result depends on the number of rows or threads (docs/kernels.md).
//
// A mistake in the plan (a wrong size, a handle of another kind) is kept and returned by Seal. A Program
// is used by one goroutine at a time.
type Program struct {
	maxRows, maxWanted int
	bufs               []buffer
	acts               []activation
	ops                []operation
	angles             []angleTable
	kv                 KVShape
	arena              []byte
	err                error
	sealed             *sealed // nil before Seal and after Free
	widthDependent     bool    // docs/kernels.md, "A kernel that must be caught"
}

// Buf is a buffer of a Program: (maxRows, dim) or (maxWanted, dim) f32, row-major.
type Buf int

// Act is the input of matmuls in a Program, in the forms they need.
type Act int

type buffer struct {
	dim    int
	wanted bool
	off    int
}

type activation struct {
	dim          int
	wanted       bool
	int8, f32    bool // forms that are read
	offQ, offF32 int
}

type angleTable struct {
	freq []float64
	off  int
}

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
)

// operation is one entry of the plan; -1 stands for no buffer, activation or table.
type operation struct {
	kind          opKind
	w             *Matrix
	in, in2, out  Buf
	src, dst      Act
	table         int
	vec           []float32
	eps, scale    float32
	heads         int
	headDim       int
	ropeDim       int
	layer         int
	halves        bool
	add           bool
	concurrent    bool
	group0, group int
	wanted        bool
	dim           int
}

// MatMulOpt modifies a MatMul.
type MatMulOpt struct {
	Add        bool   // out += result: the residual connection
	Concurrent bool   // the next operation does not depend on this one and may run beside it
	Groups     [2]int // compute outputs [16·Groups[0], 16·Groups[1]) only; zero means all
}

// NewProgram returns an empty plan for passes of at most maxRows rows, of which at most maxWanted are
// wanted (have logits).
func NewProgram(maxRows, maxWanted int) *Program {
	p := &Program{maxRows: maxRows, maxWanted: maxWanted, widthDependent: brokenKernel}
	if maxRows < 1 || maxRows > 1<<20 || maxWanted < 0 || maxWanted > maxRows {
		p.fail("program of %d rows and %d wanted ones, want 1 to %d rows and no more wanted", maxRows, maxWanted, 1<<20)
	}
	return p
}

func (p *Program) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("kernels: "+format, args...)
	}
}

// Buf adds a buffer of maxRows rows.
func (p *Program) Buf(dim int) Buf { return p.addBuf(dim, false) }

// WantedBuf adds a buffer of maxWanted rows.
func (p *Program) WantedBuf(dim int) Buf { return p.addBuf(dim, true) }

// Act adds an activation of maxRows rows.
func (p *Program) Act(dim int) Act { return p.addAct(dim, false) }

// WantedAct adds an activation of maxWanted rows.
func (p *Program) WantedAct(dim int) Act { return p.addAct(dim, true) }

const maxDim = 1 << 24

func (p *Program) addBuf(dim int, wanted bool) Buf {
	if dim < 1 || dim > maxDim {
		p.fail("buffer of %d columns, want 1 to %d", dim, maxDim)
		dim = 1
	}
	p.bufs = append(p.bufs, buffer{dim: dim, wanted: wanted})
	return Buf(len(p.bufs) - 1)
}

func (p *Program) addAct(dim int, wanted bool) Act {
	if dim < 1 || dim > maxDim {
		p.fail("activation of %d columns, want 1 to %d", dim, maxDim)
		dim = 1
	}
	p.acts = append(p.acts, activation{dim: dim, wanted: wanted})
	return Act(len(p.acts) - 1)
}

// buf returns the buffer b names; a wrong handle fails the plan.
func (p *Program) buf(op string, b Buf) buffer {
	if b < 0 || int(b) >= len(p.bufs) {
		p.fail("%s: buffer %d of %d", op, int(b), len(p.bufs))
		return buffer{dim: 1}
	}
	return p.bufs[b]
}

func (p *Program) act(op string, a Act) activation {
	if a < 0 || int(a) >= len(p.acts) {
		p.fail("%s: activation %d of %d", op, int(a), len(p.acts))
		return activation{dim: 1}
	}
	return p.acts[a]
}

func (p *Program) want(op, what string, got, want int) {
	if got != want {
		p.fail("%s: %s is %d, want %d", op, what, got, want)
	}
}

func (p *Program) sameRows(op string, a, b bool) {
	if a != b {
		p.fail("%s: one side has all rows, the other the wanted rows", op)
	}
}

func (p *Program) push(o operation) {
	if p.sealed != nil {
		p.err = errors.New("kernels: operation added to a sealed program")
		return
	}
	p.ops = append(p.ops, o)
}

var none = operation{in: -1, in2: -1, out: -1, src: -1, dst: -1, table: -1}

func (p *Program) matrix(op string, w *Matrix) bool {
	if w == nil {
		p.fail("%s: no matrix", op)
	}
	return w != nil
}

// Embed fills out with the rows of w, widened to f32, that the pass's tokens name.
func (p *Program) Embed(w *Matrix, out Buf) {
	b := p.buf("embed", out)
	if !p.matrix("embed", w) {
		return
	}
	p.want("embed", "buffer's columns", b.dim, w.cols)
	p.sameRows("embed", b.wanted, false)
	o := none
	o.kind, o.w, o.out, o.dim = opEmbed, w, out, w.cols
	p.push(o)
}

// RMSNorm fills out with in, divided by its root mean square and multiplied by weight.
func (p *Program) RMSNorm(in Buf, weight []float32, eps float32, out Act) {
	b, a := p.buf("rmsnorm", in), p.act("rmsnorm", out)
	p.want("rmsnorm", "weight's length", len(weight), b.dim)
	p.want("rmsnorm", "output's columns", a.dim, b.dim)
	p.sameRows("rmsnorm", a.wanted, b.wanted)
	o := none
	o.kind, o.in, o.dst, o.vec, o.eps, o.dim, o.wanted = opNorm, in, out, weight, eps, b.dim, b.wanted
	p.push(o)
}

// MatMul fills out with the products of w's rows and in.
func (p *Program) MatMul(w *Matrix, in Act, out Buf, opt MatMulOpt) {
	a, b := p.act("matmul", in), p.buf("matmul", out)
	if p.err != nil || !p.matrix("matmul", w) {
		return
	}
	groups := (w.rows + lanes - 1) / lanes
	if opt.Groups == [2]int{} {
		opt.Groups[1] = groups
	}
	p.want("matmul", "input's columns", a.dim, w.cols)
	p.want("matmul", "output's columns", b.dim, w.rows)
	p.sameRows("matmul", a.wanted, b.wanted)
	if g := opt.Groups; g[0] < 0 || g[0] >= g[1] || g[1] > groups {
		p.fail("matmul: groups %d to %d of %d", g[0], g[1], groups)
	}
	if w.typ.Quantized() {
		p.acts[in].int8 = true
	} else {
		p.acts[in].f32 = true
	}
	o := none
	o.kind, o.w, o.src, o.out, o.dim, o.wanted = opMatMul, w, in, out, w.cols, a.wanted
	o.add, o.concurrent, o.group0, o.group = opt.Add, opt.Concurrent, opt.Groups[0], opt.Groups[1]
	p.push(o)
}

// AddBias adds bias to every row of buf.
func (p *Program) AddBias(buf Buf, bias []float32) {
	b := p.buf("bias", buf)
	p.want("bias", "length", len(bias), b.dim)
	o := none
	o.kind, o.out, o.vec, o.dim, o.wanted = opBias, buf, bias, b.dim, b.wanted
	p.push(o)
}

// RoPE turns the first ropeDim elements of each head of b by position·invFreq: pair i is elements
// (2i, 2i+1), or (i, i+ropeDim/2) with halves. Cosines and sines are computed once per row and table.
func (p *Program) RoPE(b Buf, heads, headDim, ropeDim int, invFreq []float64, halves bool) {
	q := p.buf("rope", b)
	if heads < 1 || headDim < 1 || heads > maxDim || headDim > maxDim {
		p.fail("rope: %d heads of %d", heads, headDim)
		return
	}
	p.want("rope", "heads·headDim", heads*headDim, q.dim)
	p.sameRows("rope", q.wanted, false)
	if ropeDim < 2 || ropeDim > headDim || ropeDim%2 != 0 {
		p.fail("rope: %d of %d elements turn, want an even number from 2", ropeDim, headDim)
		return
	}
	p.want("rope", "number of frequencies", len(invFreq), ropeDim/2)
	for i, f := range invFreq {
		if !(math.Abs(f) <= 16) {
			p.fail("rope: frequency %d is %v, want at most 16", i, f)
		}
	}
	o := none
	o.kind, o.out, o.dim, o.heads, o.headDim, o.ropeDim, o.halves = opRoPE, b, q.dim, heads, headDim, ropeDim, halves
	o.table = p.angleTable(invFreq)
	p.push(o)
}

func (p *Program) angleTable(freq []float64) int {
next:
	for i, t := range p.angles {
		if len(t.freq) != len(freq) {
			continue
		}
		for j, f := range freq {
			if t.freq[j] != f {
				continue next
			}
		}
		return i
	}
	p.angles = append(p.angles, angleTable{freq: append([]float64(nil), freq...)})
	return len(p.angles) - 1
}

// SetKV names the KV cache that StoreKV and Attention use: whole pages, from Alloc, alive as long as p.
func (p *Program) SetKV(shape KVShape, arena []byte) {
	if err := shape.check(); err != nil {
		p.fail("%v", err)
		return
	}
	if n := len(arena) / shape.PageBytes(); n < 1 || n > math.MaxInt32/PageRows || len(arena)%shape.PageBytes() != 0 {
		p.fail("KV arena of %d bytes, want a multiple of a page's %d and at most %d pages", len(arena), shape.PageBytes(), math.MaxInt32/PageRows)
		return
	}
	p.kv, p.arena = shape, arena
}

func (p *Program) layer(op string, layer int) {
	if layer < 0 || layer >= p.kv.Layers {
		p.fail("%s: layer %d of a KV cache of %d", op, layer, p.kv.Layers)
	}
}

// StoreKV writes each row's keys and values, as f16, into the cell that the pass names for it.
func (p *Program) StoreKV(k, v Buf, layer int) {
	p.layer("store", layer)
	for _, b := range []buffer{p.buf("store", k), p.buf("store", v)} {
		p.want("store", "buffer's columns", b.dim, p.kv.KVHeads*p.kv.HeadDim)
		p.sameRows("store", b.wanted, false)
	}
	o := none
	o.kind, o.in, o.in2, o.layer, o.dim = opStore, k, v, layer, p.kv.KVHeads*p.kv.HeadDim
	p.push(o)
}

// Attention fills out with softmax(scale·q·K)·V of each row over the positions it sees.
func (p *Program) Attention(q Buf, layer, heads int, scale float32, out Act) {
	p.layer("attention", layer)
	b, a := p.buf("attention", q), p.act("attention", out)
	if heads < 1 || heads > maxDim || p.kv.KVHeads < 1 || heads%p.kv.KVHeads != 0 {
		p.fail("attention: %d heads on %d KV heads, want a multiple", heads, p.kv.KVHeads)
		return
	}
	p.want("attention", "query's columns", b.dim, heads*p.kv.HeadDim)
	p.want("attention", "output's columns", a.dim, heads*p.kv.HeadDim)
	p.sameRows("attention", a.wanted || b.wanted, false)
	o := none
	o.kind, o.in, o.dst, o.layer, o.heads, o.scale, o.dim = opAttend, q, out, layer, heads, scale, b.dim
	p.push(o)
}

// SiLUMul fills out with silu(gate)·up.
func (p *Program) SiLUMul(gate, up Buf, out Act) {
	g, u, a := p.buf("silu", gate), p.buf("silu", up), p.act("silu", out)
	p.want("silu", "up's columns", u.dim, g.dim)
	p.want("silu", "output's columns", a.dim, g.dim)
	p.sameRows("silu", g.wanted, u.wanted)
	p.sameRows("silu", g.wanted, a.wanted)
	o := none
	o.kind, o.in, o.in2, o.dst, o.dim, o.wanted = opSiLU, gate, up, out, g.dim, g.wanted
	p.push(o)
}

// Gather copies the wanted rows of in to out, a WantedBuf.
func (p *Program) Gather(in Buf, out Buf) {
	a, b := p.buf("gather", in), p.buf("gather", out)
	p.want("gather", "output's columns", b.dim, a.dim)
	p.sameRows("gather", a.wanted, false)
	p.sameRows("gather", b.wanted, true)
	o := none
	o.kind, o.in, o.out, o.dim, o.wanted = opGather, in, out, a.dim, true
	p.push(o)
}

// TopK finds the best Pass.TopK values of each wanted row and the softmax sum over all; see Top.
func (p *Program) TopK(logits Buf) {
	b := p.buf("topk", logits)
	p.sameRows("topk", b.wanted, true)
	o := none
	o.kind, o.in, o.dim, o.wanted = opTopK, logits, b.dim, true
	p.push(o)
}

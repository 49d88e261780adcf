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
	dim                  int
	wanted               bool
	int8, int256, f32    bool // forms that are read: int8 with a scale per 32 or 256, f32
	offQ, off256, offF32 int
}

type angleTable struct {
	freq      []float64
	magnitude float32
	off       int
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
	opGELU
	opNormAdd
	opHeadNorm
	opScale
	opSoftCap
	opRepeat
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
	window        int
	softCap       float32
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

// AttentionOpt says how an Attention weighs positions: score s = Scale·q·k, then with a SoftCap
// s = SoftCap·tanh(s/SoftCap); with a Window, a query at position p sees position j only if p-j < Window.
type AttentionOpt struct {
	Scale   float32
	Window  int     // positions, the query's own included; 0: all
	SoftCap float32 // 0: none
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
	switch {
	case w.typ.super():
		p.acts[in].int256 = true
	case w.typ.Quantized():
		p.acts[in].int8 = true
	default:
		p.acts[in].f32 = true
	}
	o := none
	o.kind, o.w, o.src, o.out, o.dim, o.wanted = opMatMul, w, in, out, w.cols, a.wanted
	o.add, o.concurrent, o.group0, o.group = opt.Add, opt.Concurrent, opt.Groups[0], opt.Groups[1]
	p.push(o)
}

// SetKV names the KV cache that StoreKV and Attention use: whole pages, from Alloc, alive as long as p.
func (p *Program) SetKV(shape KVShape, arena []byte) {
	if err := shape.Check(); err != nil {
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

// StoreKV writes each row's keys and values, in the format of the cache, into the cell that the pass names for it.
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

// Attention fills out with softmax(scores of q and K)·V of each row over the positions it sees.
func (p *Program) Attention(q Buf, layer, heads int, opt AttentionOpt, out Act) {
	p.layer("attention", layer)
	if opt.Window < 0 || opt.Window > maxDim {
		p.fail("attention: window of %d positions, want 1 to %d, or 0 for all", opt.Window, maxDim)
	}
	if !(opt.SoftCap >= 0) || opt.SoftCap > 1e6 {
		p.fail("attention: soft cap %v, want more than 0 and at most 1e6, or 0 for none", opt.SoftCap)
	}
	b, a := p.buf("attention", q), p.act("attention", out)
	if heads < 1 || heads > maxDim || p.kv.KVHeads < 1 || heads%p.kv.KVHeads != 0 {
		p.fail("attention: %d heads on %d KV heads, want a multiple", heads, p.kv.KVHeads)
		return
	}
	p.want("attention", "query's columns", b.dim, heads*p.kv.HeadDim)
	p.want("attention", "output's columns", a.dim, heads*p.kv.HeadDim)
	p.sameRows("attention", a.wanted || b.wanted, false)
	o := none
	o.kind, o.in, o.dst, o.layer, o.heads, o.dim = opAttend, q, out, layer, heads, b.dim
	o.scale, o.window, o.softCap = opt.Scale, opt.Window, opt.SoftCap
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

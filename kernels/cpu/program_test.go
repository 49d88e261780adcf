package kernels_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	kernels "github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// weight is a matrix in both forms.
type weight struct {
	typ  kernels.Type
	n, k int
	src  []byte
	m    *kernels.Matrix
}

func newWeight(t testing.TB, r *rand.Rand, typ kernels.Type, n, k int) weight {
	src := randomRows(r, typ, n, k)
	return weight{typ, n, k, src, packed(t, typ, n, k, src)}
}

func (w weight) row(i int, out []float32) {
	ref.Dequantize(uint32(w.typ), w.src[i*len(w.src)/w.n:], out)
}

func (w weight) mul(x, out []float32, add bool) {
	ref.MatVec(uint32(w.typ), w.src, len(w.src)/w.n, x, out, add)
}

// network is a transformer of one layer with everything a Program can do.
type network struct {
	dim, heads, headDim, ffn, vocab        int
	shape                                  kernels.KVShape
	embed, q, k, v, o, gate, up, down, out weight
	norm, ffnNorm, outNorm, bias           []float32
	freq                                   []float64
}

const (
	netRows, netWanted, netPages = 17, 9, 12
	netScale                     = 0.2
)

func newNetwork(t testing.TB, r *rand.Rand, heads, kvHeads, headDim, ffn int, typ [3]kernels.Type) *network {
	dim, vocab := heads*headDim, 70
	kv := kvHeads * headDim
	n := &network{dim: dim, heads: heads, headDim: headDim, ffn: ffn, vocab: vocab,
		shape: kernels.KVShape{Layers: 1, KVHeads: kvHeads, HeadDim: headDim}}
	n.embed, n.out = newWeight(t, r, typ[0], vocab, dim), newWeight(t, r, typ[0], vocab, dim)
	n.q, n.k, n.v = newWeight(t, r, typ[1], dim, dim), newWeight(t, r, typ[1], kv, dim), newWeight(t, r, typ[2], kv, dim)
	n.o, n.gate, n.up = newWeight(t, r, typ[1], dim, dim), newWeight(t, r, typ[1], ffn, dim), newWeight(t, r, typ[1], ffn, dim)
	n.down = newWeight(t, r, typ[2], dim, ffn)
	n.norm, n.ffnNorm, n.outNorm = randomFloats(r, dim, false), randomFloats(r, dim, false), randomFloats(r, dim, false)
	n.bias = randomFloats(r, dim, false)
	for i := 0; i < headDim/2; i++ {
		n.freq = append(n.freq, math.Pow(10000, -2*float64(i)/float64(headDim)))
	}
	return n
}

type plan struct {
	*kernels.Program
	h, logits kernels.Buf
}

func (n *network) plan(t testing.TB, arena []byte, broken bool) plan {
	p := kernels.NewProgram(netRows, netWanted)
	if broken {
		kernels.SetWidthDependent(p)
	}
	h, q, gate, up := p.Buf(n.dim), p.Buf(n.dim), p.Buf(n.ffn), p.Buf(n.ffn)
	kv := n.shape.KVHeads * n.headDim
	k, v := p.Buf(kv), p.Buf(kv)
	act, ffn, head := p.Act(n.dim), p.Act(n.ffn), p.WantedAct(n.dim)
	wanted, logits := p.WantedBuf(n.dim), p.WantedBuf(n.vocab)
	side := kernels.MatMulOpt{Concurrent: true}
	p.SetKV(n.shape, arena)
	p.Embed(n.embed.m, h)
	p.RMSNorm(h, n.norm, 1e-5, act)
	p.MatMul(n.q.m, act, q, side)
	p.MatMul(n.k.m, act, k, side)
	p.MatMul(n.v.m, act, v, kernels.MatMulOpt{})
	p.AddBias(q, n.bias)
	p.RoPE(q, n.heads, n.headDim, kernels.Rotation{InvFreq: n.freq})
	p.RoPE(k, n.shape.KVHeads, n.headDim, kernels.Rotation{InvFreq: n.freq})
	p.StoreKV(k, v, 0)
	p.Attention(q, 0, n.heads, kernels.AttentionOpt{Scale: netScale}, act)
	p.MatMul(n.o.m, act, h, kernels.MatMulOpt{Add: true})
	p.RMSNorm(h, n.ffnNorm, 1e-5, act)
	p.MatMul(n.gate.m, act, gate, side)
	half := (n.ffn/16 + 1) / 2 // a matrix split between two operations
	p.MatMul(n.up.m, act, up, kernels.MatMulOpt{Concurrent: true, Groups: [2]int{0, half}})
	p.MatMul(n.up.m, act, up, kernels.MatMulOpt{Groups: [2]int{half, (n.ffn + 15) / 16}})
	p.SiLUMul(gate, up, ffn)
	p.MatMul(n.down.m, ffn, h, kernels.MatMulOpt{Add: true})
	p.Gather(h, wanted)
	p.RMSNorm(wanted, n.outNorm, 1e-5, head)
	p.MatMul(n.out.m, head, logits, kernels.MatMulOpt{})
	p.TopK(logits)
	return plan{seal(t, p), h, logits}
}

// ref is plan by the definition, for the rows of a pass; it returns the logits of the wanted rows and
// leaves keys and values in the cache.
func (n *network) ref(c *cache, p *kernels.Pass) []float32 {
	h := make([]float32, p.Rows*n.dim)
	q := make([]float32, p.Rows*n.dim)
	y, kv := make([]float32, n.dim), n.shape.KVHeads*n.headDim
	row := func(x []float32, i int) []float32 { return x[i*n.dim : (i+1)*n.dim] }
	for i := 0; i < p.Rows; i++ {
		n.embed.row(int(p.Tokens[i]), row(h, i))
		ref.RMSNorm(row(h, i), n.norm, 1e-5, y)
		k, v := make([]float32, kv), make([]float32, kv)
		n.q.mul(y, row(q, i), false)
		n.k.mul(y, k, false)
		n.v.mul(y, v, false)
		for j := range n.bias {
			row(q, i)[j] += n.bias[j]
		}
		for a := 0; a < n.heads; a++ {
			ref.RoPE(row(q, i)[a*n.headDim:(a+1)*n.headDim], p.Pos[i], n.freq, 1, false)
		}
		for a := 0; a < n.shape.KVHeads; a++ {
			ref.RoPE(k[a*n.headDim:(a+1)*n.headDim], p.Pos[i], n.freq, 1, false)
		}
		c.store(p.Store[i], 0, k, v)
	}
	var logits []float32
	gate, up := make([]float32, n.ffn), make([]float32, n.ffn)
	for _, w := range p.Wanted {
		i, x := int(w), row(h, int(w))
		n.o.mul(refHeads(c, p, i, 0, n.heads, kernels.AttentionOpt{Scale: netScale}, row(q, i)), x, true)
		ref.RMSNorm(x, n.ffnNorm, 1e-5, y)
		n.gate.mul(y, gate, false)
		n.up.mul(y, up, false)
		ref.SiLUMul(gate, up, gate)
		n.down.mul(gate, x, true)
		ref.RMSNorm(x, n.outNorm, 1e-5, y)
		out := make([]float32, n.vocab)
		n.out.mul(y, out, false)
		logits = append(logits, out...)
	}
	return logits
}

// treePass is a pass of two sessions: the first extends its prefix by some rows and then has a tree
// whose rows see those; the second is a tree alone. Cells of the trees lie in pages of their own.
func treePass(r *rand.Rand, prefixA, extend, prefixB, tree int, vocab int) *kernels.Pass {
	p := &kernels.Pass{TopK: 5}
	pages := []int32{7, 3, 9, 0, 11, 5, 1, 8}
	p.Pages = pages
	add := func(table, prefix, pos int, store kernels.Cell, anc []kernels.Cell) {
		p.Rows++
		p.Tokens, p.Pos = append(p.Tokens, int32(r.IntN(vocab))), append(p.Pos, int32(pos))
		p.Table, p.Prefix = append(p.Table, int32(table)), append(p.Prefix, int32(prefix))
		p.AncOff, p.AncLen = append(p.AncOff, int32(len(p.Anc))), append(p.AncLen, int32(len(anc)))
		p.Anc, p.Store = append(p.Anc, anc...), append(p.Store, store)
	}
	for pos := prefixA; pos < prefixA+extend; pos++ {
		add(0, pos+1, pos, kernels.Cell(pages[pos/64])*64+kernels.Cell(pos%64), nil)
	}
	for s, prefix := range []int{prefixA + extend, prefixB} {
		var paths [][]kernels.Cell
		for i := 0; i < tree; i++ {
			var path []kernels.Cell
			if i > 0 {
				path = paths[r.IntN(i)]
			}
			cell := kernels.Cell([]int{2, 4}[s]*64 + 3*i)
			path = append(append([]kernels.Cell(nil), path...), cell)
			paths = append(paths, path)
			add(4*s, prefix, prefix+len(path)-1, cell, path)
		}
	}
	for i := 0; i < p.Rows && len(p.Wanted) < netWanted; i += 2 {
		p.Wanted = append(p.Wanted, int32(i))
	}
	return p
}

// TestProgram: a whole network equals the composition of the definitions, on every instruction set and
// number of threads.
func TestProgram(t *testing.T) {
	all := pools(t, 1, 2, 3)
	for i, s := range []struct {
		heads, kvHeads, headDim, ffn int
		typ                          [3]kernels.Type
	}{
		{4, 2, 64, 512, [3]kernels.Type{kernels.Q6_K, kernels.Q4_K, kernels.Q6_K}},
		{4, 1, 32, 352, [3]kernels.Type{kernels.Q8_0, kernels.Q8_0, kernels.Q4_0}},
		{2, 2, 80, 224, [3]kernels.Type{kernels.F16, kernels.BF16, kernels.F32}},
	} {
		r := rng(uint64(i))
		n := newNetwork(t, r, s.heads, s.kvHeads, s.headDim, s.ffn, s.typ)
		c := newCache(t, r, n.shape, netPages)
		p := n.plan(t, c.arena, false)
		for round := 0; round < 2; round++ {
			pass := treePass(r, 100+200*round, 5, 40, 6, n.vocab)
			want := n.ref(c, pass)
			for _, pool := range all {
				run(t, p.Program, pool, pass)
				wantSame(t, fmt.Sprintf("network %d, %v, %d threads", i, pool.ISA(), pool.Threads()), p.Rows(p.logits)[:len(want)], want)
				pass.Wanted = pass.Wanted[:0] // no logits: everything after Gather has no rows
				run(t, p.Program, pool, pass)
				pass.Wanted = pass.Wanted[:len(want)/n.vocab]
				run(t, p.Program, pool, pass)
				for j := range pass.Wanted {
					checkTop(t, "top", p.Program, j, want[j*n.vocab:(j+1)*n.vocab], pass.TopK)
				}
			}
		}
	}
}

// rowsDiffer runs a pass whole and then each of its tree rows alone, and reports whether any result
// depends on that.
func rowsDiffer(t *testing.T, broken bool, pool *kernels.Pool) bool {
	r := rng(99)
	n := newNetwork(t, r, 8, 2, 64, 512, [3]kernels.Type{kernels.Q8_0, kernels.Q8_0, kernels.Q8_0})
	c := newCache(t, r, n.shape, netPages)
	p := n.plan(t, c.arena, broken)
	pass := treePass(r, 320, 3, 40, 6, n.vocab)
	run(t, p.Program, pool, pass)
	hidden := append([]float32(nil), p.Rows(p.h)...)
	differ := false
	for i := 0; i < pass.Rows; i++ { // in order: a row's ancestors are stored before it
		run(t, p.Program, pool, alone(pass, i))
		if firstDifference(p.Rows(p.h)[:n.dim], hidden[i*n.dim:(i+1)*n.dim]) >= 0 {
			differ = true
		}
	}
	return differ
}

// alone is the pass with row i only.
func alone(p *kernels.Pass, i int) *kernels.Pass {
	return &kernels.Pass{Rows: 1, Tokens: p.Tokens[i : i+1], Pos: p.Pos[i : i+1], Store: p.Store[i : i+1], Pages: p.Pages,
		Table: p.Table[i : i+1], Prefix: p.Prefix[i : i+1], Anc: p.Anc, AncOff: p.AncOff[i : i+1], AncLen: p.AncLen[i : i+1],
		Wanted: []int32{0}, TopK: p.TopK}
}

func TestRowAloneEqualsRowInWidePass(t *testing.T) {
	for _, pool := range pools(t, 1, 2) {
		if rowsDiffer(t, false, pool) {
			t.Errorf("%v, %d threads: a row alone differs from the row in a wide pass", pool.ISA(), pool.Threads())
		}
	}
}

// TestWidthDependentKernelIsCaught: the check above is able to fail.
func TestWidthDependentKernelIsCaught(t *testing.T) {
	for _, pool := range pools(t, 1) {
		if !rowsDiffer(t, true, pool) {
			t.Errorf("%v: a kernel that depends on the width of the pass went unnoticed", pool.ISA())
		}
	}
	r := rng(5)
	const rows, n, k = 4, 40, 512
	w, x := randomRows(r, kernels.Q8_0, n, k), randomFloats(r, rows*k, false)
	want := refProduct(kernels.Q8_0, w, n, k, x, nil, rows, false)
	m := newProduct(t, packed(t, kernels.Q8_0, n, k, w), rows, kernels.MatMulOpt{}, true)
	pool := newPool(t, 1, kernels.Auto)
	if firstDifference(m.multiply(t, pool, x, nil, rows), want) < 0 {
		t.Error("a wide product with the broken kernel equals the definition")
	}
	if i := firstDifference(m.multiply(t, pool, x, nil, 1), want[:n]); i >= 0 {
		t.Errorf("a single row with the broken kernel differs at %d: it should be broken in wide passes only", i)
	}
}

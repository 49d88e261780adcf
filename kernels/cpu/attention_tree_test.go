//go:build amd64

package cpu_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cpu/peers"
	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// treeBench is a pass of rows that see only their ancestors, and the same input in the layout of the peers.
type treeBench struct {
	runner kernels.Runner
	pass   *kernels.Pass
	peer   *peers.Tree
	out    kernels.Buf
}

// newTree makes a random tree of rows, row i of which is stored in cell i.
func newTree(t testing.TB, dev *cpu.Device, rows int) *treeBench {
	const heads, kvHeads, dim = 32, 8, 64
	r, pass := rng(3), &kernels.Pass{Rows: rows, Pages: []int32{0}}
	var paths [][]kernels.Cell
	for i := range rows {
		var path []kernels.Cell
		if i > 0 {
			path = paths[r.IntN(i)]
		}
		path = append(append([]kernels.Cell(nil), path...), kernels.Cell(i))
		paths = append(paths, path)
		pass.Pos, pass.Prefix, pass.Table = append(pass.Pos, int32(len(path)-1)), append(pass.Prefix, 0), append(pass.Table, 0)
		pass.AncOff, pass.AncLen = append(pass.AncOff, int32(len(pass.Anc))), append(pass.AncLen, int32(len(path)))
		pass.Anc, pass.Store = append(pass.Anc, path...), append(pass.Store, kernels.Cell(i))
	}
	const n = heads * dim
	cache := newCache(t, kernels.UniformKV(1, kvHeads, dim, kernels.KVF16), (rows+63)/64)
	keys, values, queries := halved(rng(4), rows*kvHeads*dim), halved(rng(5), rows*kvHeads*dim),
		kerneltest.RandomFloats(rng(2), rows*n, false)
	store := kernels.NewProgram(rows, 0)
	store.KV = cache.Shape()
	k, v := store.Buf(kvHeads*dim), store.Buf(kvHeads*dim)
	store.StoreKV(k, v, 0)
	filled := compile(t, dev, store, nil, cache)
	setRows(filled, k, rows, keys)
	setRows(filled, v, rows, values)
	run(t, filled, pass)
	p := kernels.NewProgram(rows, 0)
	p.KV = cache.Shape()
	q, act := p.Buf(n), p.Act(n)
	b := &treeBench{pass: pass, out: p.Buf(n), peer: &peers.Tree{Q: queries, K: keys, V: values, Out: make([]float32, rows*n),
		Mask: slices.Repeat([]float32{float32(math.Inf(-1))}, rows*rows), Rows: rows, Heads: heads, KVHeads: kvHeads, HeadDim: dim,
		Scale: 0.125}}
	p.Attention(q, 0, heads, kernels.AttentionOpt{Scale: 0.125}, act)
	var data [][]byte
	if _, bench := t.(*testing.B); !bench {
		w := p.Weight(matrix(kernels.F32, n, n))
		p.MatMul(w, act, b.out, kernels.MatMulOpt{})
		one := make([]byte, n*n*4)
		for i := range n {
			copy(one[(i*n+i)*4:], []byte{0, 0, 0x80, 0x3f})
		}
		data = append(data, one)
	}
	b.runner = compile(t, dev, p, data, cache)
	setRows(b.runner, q, rows, queries)
	for row, path := range paths {
		for _, cell := range path {
			b.peer.Pairs = append(b.peer.Pairs, int32(row), int32(cell))
			b.peer.Mask[row*rows+int(cell)] = 0
		}
	}
	return b
}

// halved returns numbers that are exact in the cache's format.
func halved(r *rand.Rand, n int) []float32 {
	x := kerneltest.RandomFloats(r, n, false)
	for i := range x {
		x[i] = half.Float(half.From(x[i]))
	}
	return x
}

// avx2 skips where the peers cannot run.
func avx2(t testing.TB) {
	if !slices.Contains(cpu.Supported(), cpu.AVX2) {
		t.Skip("the peers of tree attention need AVX2")
	}
}

// TestTreePeers: the kernel and its peers compute the same thing.
func TestTreePeers(t *testing.T) {
	avx2(t)
	const rows = 16
	b := newTree(t, testdevice.CPU(t, 1), rows)
	run(t, b.runner, b.pass)
	peer, out := b.peer, getRows(b.runner, b.out, rows)
	for name, f := range map[string]func(){"naive": peer.Naive, "sparse": peer.Sparse, "dense": peer.Dense} {
		f()
		for i, want := range out {
			if math.Abs(float64(peer.Out[i]-want)) > 1e-4 {
				t.Fatalf("%s: element %d is %v, want about %v", name, i, peer.Out[i], want)
			}
		}
	}
}

// BenchmarkTreePart compares the tree part of attention with a naive sparse version, a sparse one written with
// vectors, and a masked dense one, all of them on one thread, with AVX2 where there are vectors; Ghidorah
// reports 3.49 times naive sparse and 1.90 times dense.
func BenchmarkTreePart(b *testing.B) {
	for _, rows := range []int{8, 16, 32, 64} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			avx2(b)
			tree := newTree(b, testdevice.ISA(b, 1, cpu.AVX2), rows)
			peer, pass := tree.peer, tree.pass
			best := [4]time.Duration{1 << 62, 1 << 62, 1 << 62, 1 << 62}
			for b.Loop() {
				for i, f := range []func(){func() { run(b, tree.runner, pass) }, peer.Naive, peer.Sparse, peer.Dense} {
					start := time.Now()
					f()
					best[i] = min(best[i], time.Since(start))
				}
			}
			b.ReportMetric(float64(len(pass.Anc))/float64(rows), "ancestors")
			b.ReportMetric(best[0].Seconds()*1e6, "us")
			for i, name := range []string{"x-naive", "x-sparse", "x-dense"} {
				b.ReportMetric(best[i+1].Seconds()/best[0].Seconds(), name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

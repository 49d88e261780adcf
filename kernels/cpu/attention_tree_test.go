//go:build amd64

package kernels_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	kernels "github.com/tandem-llm/tandem/kernels/cpu"
)

// newTreePeer gives the peers the tree of a pass without a prefix, whose row i is stored in cell tree+i.
func newTreePeer(p *kernels.Pass, c *cache, q []float32, heads int, tree kernels.Cell) *kernels.TreePeer {
	s := c.shape
	t := &kernels.TreePeer{Q: q, Rows: p.Rows, Heads: heads, KVHeads: s.KVHeads, HeadDim: s.HeadDim, Scale: 0.125}
	t.Out, t.Mask = make([]float32, len(q)), make([]float32, p.Rows*p.Rows)
	for i := range t.Mask {
		t.Mask[i] = float32(math.Inf(-1))
	}
	for row := range p.Rows {
		for h := range s.KVHeads {
			t.K = append(t.K, c.row(tree+kernels.Cell(row), 0, 0, h)...)
			t.V = append(t.V, c.row(tree+kernels.Cell(row), 0, 1, h)...)
		}
		for _, cell := range p.Anc[p.AncOff[row]:][:p.AncLen[row]] {
			t.Pairs = append(t.Pairs, int32(row), int32(cell-tree))
			t.Mask[row*p.Rows+int(cell-tree)] = 0
		}
	}
	return t
}

// treeOnly returns a benchmark's pass of rows that see their ancestors alone, with the peers' input, and a
// buffer that holds the results.
func treeOnly(t testing.TB, rows int) (*kernels.Program, *kernels.Pass, *kernels.TreePeer, kernels.Buf) {
	if !slices.Contains(kernels.Supported(), kernels.AVX2) {
		t.Skip("the peers of tree attention need AVX2")
	}
	const heads = 32
	shape := kernels.KVShape{Layers: 1, KVHeads: 8, HeadDim: 64}
	c := newCache(t, rng(1), shape, (rows+63)/64)
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
	p := kernels.NewProgram(rows, 0)
	n := heads * shape.HeadDim
	q, out, act := p.Buf(n), p.Buf(n), p.Act(n)
	p.SetKV(shape, c.arena)
	p.Attention(q, 0, heads, kernels.AttentionOpt{Scale: 0.125}, act)
	if _, bench := t.(*testing.B); !bench {
		p.MatMul(identity(t, n), act, out, kernels.MatMulOpt{})
	}
	seal(t, p)
	copy(p.Rows(q), randomFloats(rng(2), rows*n, false))
	return p, pass, newTreePeer(pass, c, p.Rows(q), heads, 0), out
}

// TestTreePeers: the kernel and its peers compute the same thing.
func TestTreePeers(t *testing.T) {
	p, pass, peer, out := treeOnly(t, 16)
	run(t, p, newPool(t, 1, kernels.Auto), pass)
	for name, f := range map[string]func(){"naive": peer.Naive, "sparse": peer.Sparse, "dense": peer.Dense} {
		f()
		for i, want := range p.Rows(out) {
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
			p, pass, peer, _ := treeOnly(b, rows)
			pool := newPool(b, 1, kernels.AVX2)
			best := [4]time.Duration{1 << 62, 1 << 62, 1 << 62, 1 << 62}
			for b.Loop() {
				for i, f := range []func(){func() { run(b, p, pool, pass) }, peer.Naive, peer.Sparse, peer.Dense} {
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

package cpu_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// attentionBench attends the layers of one cache in turn: a program for each, so that keys come from memory as they do in a model, and
// passes are short.
type attentionBench struct {
	layers    []kernels.Runner
	pass      *kernels.Pass
	pageBytes int64 // of one layer
}

// benchShape is attention of so many query heads on layers that all keep the same.
type benchShape struct {
	heads int
	kept  kernels.KVLayer
}

// grouped has 8 KV heads of 64 with 4 query heads each; compressed is GLM-4.7-Flash's, whose heads have keys of 192 + 64 elements and
// values of 256, made from 512.
var (
	grouped    = benchShape{32, kernels.KVLayer{Heads: 8, Dim: 64}}
	compressed = benchShape{20, kernels.KVLayer{Latent: 512, Rotated: 64}}
)

// macs returns the multiply-adds of a row for each position that it sees; elements what is kept of a position, once.
func (s benchShape) macs() float64 {
	_, key, value := s.kept.Seen()
	return float64(s.heads * (key + value))
}

func (s benchShape) elements() int {
	return 2*s.kept.Heads*s.kept.Dim + s.kept.Latent + s.kept.Rotated
}

// newAttentionBench makes rows of a session at a context: a tree of random parents below the prefix, or
// rows that extend it.
func newAttentionBench(b *testing.B, dev *cpu.Device, s benchShape, typ kernels.KVType, layers, context, rows int,
	chunk bool) attentionBench {
	pages := (context + rows + 2*kernels.PageRows) / kernels.PageRows
	cache := newCache(b, kernels.KVShape{Layers: slices.Repeat([]kernels.KVLayer{s.kept}, layers), Type: typ}, pages)
	fillCache(b, dev, cache)
	_, key, value := s.kept.Seen()
	n := s.heads * key
	a := attentionBench{pass: &kernels.Pass{Rows: rows}, pageBytes: cache.Bytes() / int64(pages*layers)}
	for l := range layers {
		p := kernels.NewProgram(rows, 0)
		p.KV = cache.Shape()
		q := p.Buf(n)
		p.Attention(q, l, s.heads, kernels.AttentionOpt{Scale: 0.125}, p.Act(s.heads*value))
		r := compile(b, dev, p, nil, cache)
		setRows(r, q, rows, kerneltest.RandomFloats(rng(2), rows*n, false))
		a.layers = append(a.layers, r)
	}
	r, p := rng(3), a.pass
	for i := range pages {
		p.Pages = append(p.Pages, int32(i))
	}
	tree := kernels.Cell((pages - (rows+kernels.PageRows-1)/kernels.PageRows) * kernels.PageRows)
	var paths [][]kernels.Cell
	for i := range rows {
		var path []kernels.Cell
		prefix := context
		if chunk {
			prefix = context - rows + i + 1
		} else {
			if i > 0 {
				path = paths[r.IntN(i)]
			}
			path = append(append([]kernels.Cell(nil), path...), tree+kernels.Cell(i))
			paths = append(paths, path)
		}
		p.Pos, p.Prefix, p.Table = append(p.Pos, int32(prefix+len(path)-1)), append(p.Prefix, int32(prefix)), append(p.Table, 0)
		p.AncOff, p.AncLen = append(p.AncOff, int32(len(p.Anc))), append(p.AncLen, int32(len(path)))
		p.Anc, p.Store = append(p.Anc, path...), append(p.Store, tree)
	}
	return a
}

// best returns the fastest pass, over one layer.
func (a *attentionBench) best(b *testing.B) time.Duration {
	best := time.Duration(1 << 62)
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		run(b, a.layers[i%len(a.layers)], a.pass)
		best = min(best, time.Since(start))
	}
	return best
}

// BenchmarkAttention reports the time of attention in one layer and its shares of two limits measured in
// the same run: of reading keys and values once (kvshare), and of that or the multiply-adds, whichever takes
// longer (share).
func BenchmarkAttention(b *testing.B) {
	for _, isa := range cpu.Supported()[1:] {
		for _, threads := range []int{1, 2} {
			dev := testdevice.ISA(b, threads, isa)
			for _, typ := range []kernels.KVType{kernels.KVF16, kernels.KVQ8_0} {
				for _, c := range []struct {
					context, rows int
					chunk         bool
				}{{8192, 1, false}, {8192, 16, false}, {128, 1, false}, {128, 10, false}, {512, 256, true}} {
					b.Run(fmt.Sprintf("%v/%d/%v/context=%d/rows=%d", isa, threads, typ, c.context, c.rows), func(b *testing.B) {
						a := newAttentionBench(b, dev, grouped, typ, 16, c.context, c.rows, c.chunk)
						a.report(b, dev, grouped, a.pageBytes*int64(c.context)/kernels.PageRows)
					})
				}
			}
		}
	}
}

// BenchmarkCompressedAttention is BenchmarkAttention with compressed keys and values, which count as if they were kept once.
func BenchmarkCompressedAttention(b *testing.B) {
	isa := cpu.Supported()[len(cpu.Supported())-1]
	for _, threads := range []int{1, 2} {
		dev := testdevice.ISA(b, threads, isa)
		for _, context := range []int{1024, 4096} {
			for _, rows := range []int{1, 8, 16} {
				b.Run(fmt.Sprintf("%v/%d/context=%d/rows=%d", isa, threads, context, rows), func(b *testing.B) {
					a := newAttentionBench(b, dev, compressed, kernels.KVF16, 16, context, rows, false)
					a.report(b, dev, compressed, int64(2*compressed.elements()*context))
				})
			}
		}
	}
}

// report runs the benchmark; kv are the bytes of what one layer keeps.
func (a *attentionBench) report(b *testing.B, dev *cpu.Device, s benchShape, kv int64) {
	limits, err := limitsOf(dev, 1<<28, 150*time.Millisecond)
	if err != nil {
		b.Fatal(err)
	}
	sec := a.best(b).Seconds()
	seen := 0.0
	for _, pos := range a.pass.Pos {
		seen += float64(pos + 1)
	}
	macs, read := seen*s.macs(), float64(kv)/limits.ReadBytes
	b.ReportMetric(sec*1e6, "us/layer")
	b.ReportMetric(macs/sec/1e9, "Gmac/s")
	b.ReportMetric(read/sec, "kvshare")
	b.ReportMetric(max(read, macs/limits.FloatMACs)/sec, "share")
	b.ReportMetric(limits.ReadBytes/1e9, "limitGB/s")
	b.ReportMetric(limits.FloatMACs/1e9, "limitGmac/s")
	b.ReportMetric(0, "ns/op")
}

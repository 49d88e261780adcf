package cpu_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// attentionBench attends the layers of one cache, 8 KV heads of 64 with 4 query heads each, in turn: a program
// for each, so that keys come from memory as they do in a model, and passes are short.
type attentionBench struct {
	layers    []kernels.Runner
	pass      *kernels.Pass
	pageBytes int64 // of one layer
}

const benchGroup, benchHeads, benchDim = 4, 8, 64

// newAttentionBench makes rows of a session at a context: a tree of random parents below the prefix, or
// rows that extend it.
func newAttentionBench(b *testing.B, dev *cpu.Device, typ kernels.KVType, layers, context, rows int, chunk bool) attentionBench {
	pages := (context + rows + 2*kernels.PageRows) / kernels.PageRows
	cache := newCache(b, kernels.UniformKV(layers, benchHeads, benchDim, typ), pages)
	fillCache(b, dev, cache)
	const n = benchGroup * benchHeads * benchDim
	a := attentionBench{pass: &kernels.Pass{Rows: rows}, pageBytes: cache.Bytes() / int64(pages*layers)}
	for l := range layers {
		p := kernels.NewProgram(rows, 0)
		p.KV = cache.Shape()
		q := p.Buf(n)
		p.Attention(q, l, benchGroup*benchHeads, kernels.AttentionOpt{Scale: 0.125}, p.Act(n))
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
						a := newAttentionBench(b, dev, typ, 16, c.context, c.rows, c.chunk)
						limits, err := limitsOf(dev, 1<<28, 150*time.Millisecond)
						if err != nil {
							b.Fatal(err)
						}
						sec := a.best(b).Seconds()
						seen := 0.0
						for _, pos := range a.pass.Pos {
							seen += float64(pos + 1)
						}
						macs := 2 * seen * float64(benchGroup*benchHeads*benchDim)
						kv := float64(a.pageBytes) * float64(c.context) / kernels.PageRows
						b.ReportMetric(sec*1e6, "us/layer")
						b.ReportMetric(macs/sec/1e9, "Gmac/s")
						b.ReportMetric(kv/limits.ReadBytes/sec, "kvshare")
						b.ReportMetric(max(kv/limits.ReadBytes, macs/limits.FloatMACs)/sec, "share")
						b.ReportMetric(limits.ReadBytes/1e9, "limitGB/s")
						b.ReportMetric(limits.FloatMACs/1e9, "limitGmac/s")
						b.ReportMetric(0, "ns/op")
					})
				}
			}
		}
	}
}

package guess

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// BenchmarkClusters compares what an assistant's step takes for logits, of all tokens and of the best clusters, in the shape of Gemma 4
// E2B and E4B with Q8_0.
func BenchmarkClusters(b *testing.B) {
	const vocab, dim, count, chosen = 262144, 256, 2048, 32
	device := testdevice.CPU(b, 2)
	for _, all := range []bool{true, false} {
		p := blocks.NewPlanner(kernels.NewProgram(maxRows, maxRows), &blocks.Config{Vocab: vocab, Dim: dim, NormEps: 1e-6},
			&blocks.Weights{})
		matrix := func(rows, experts int) kernels.W {
			return p.Weight(kernels.Weight{Name: "w", Type: kernels.Q8_0, Rows: rows, Cols: dim, Experts: experts,
				Layout: device.Layout(kernels.Q8_0)})
		}
		p.X, p.Normed = p.Buf(dim), p.Act(dim)
		for range dim {
			p.W.OutputNorm = append(p.W.OutputNorm, 1)
		}
		if all {
			p.W.Head = matrix(vocab, 0)
			last, lastNorm, logits := p.WantedBuf(dim), p.WantedAct(dim), p.WantedBuf(vocab)
			p.Gather(p.X, last)
			p.Norm(last, p.W.OutputNorm, lastNorm)
			p.MatMul(p.W.Head, lastNorm, logits, kernels.MatMulOpt{})
			p.TopK(logits)
		} else {
			p.W.Head = matrix(vocab/count, count)
			k := &clusters{count: count, chosen: chosen, centroids: matrix(count, 0)}
			k.logits(p)
		}
		store, err := device.NewWeights(p.Program)
		if err != nil {
			b.Fatal(err)
		}
		defer store.Close()
		r := rand.New(rand.NewPCG(1, 2))
		for i := range p.Weights {
			const rows, block = 128, 34
			src := make([]byte, rows*dim/32*block)
			for row := 0; row < p.Weights[i].AllRows(); row += rows {
				for j := range src {
					if src[j] = byte(r.Uint32()); j%block < 2 {
						src[j] = 0x1c // a scale of 0.004
					}
				}
				if err := store.Pack(kernels.W(i), row, src); err != nil {
					b.Fatal(err)
				}
			}
		}
		run, err := device.Compile(p.Program, store, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer run.Close()
		for _, rows := range []int{1, 8} {
			b.Run(fmt.Sprintf("all=%v/rows=%d", all, rows), func(b *testing.B) {
				pass := kernels.Pass{Rows: rows, TopK: 8}
				for i := range rows {
					pass.Wanted = append(pass.Wanted, int32(i))
				}
				for b.Loop() {
					for i := range rows {
						for j := range dim {
							run.Row(p.X, i)[j] = float32(r.NormFloat64())
						}
					}
					if err := run.Run(&pass); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

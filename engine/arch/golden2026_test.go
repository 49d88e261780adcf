package arch_test

import (
	"math"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// golden2026 are golden models, with what their architecture has beside the keys that fromFile reads.
var golden2026 = map[string]func(n *naive.Model){
	"llama3": func(n *naive.Model) {
		n.Angle = func(_, i int) float64 {
			return naive.Frequency(500000, i, n.RopeDim) / n.Weights["rope_freqs.weight"][i]
		}
	},
	"qwen2": func(n *naive.Model) {
		n.Halves, n.Angle = true, func(_, i int) float64 { return naive.Frequency(1e6, i, n.RopeDim) }
	},
	"gemma": gemma,
	"gemma2": func(n *naive.Model) {
		gemma(n)
		n.PostNorms, n.AttnCap, n.FinalCap, n.Window = true, 8, 12, func(layer int) int { return []int{16, 0}[layer%2] }
	},
	"granite":        func(n *naive.Model) { n.EmbedScale, n.ResidualScale, n.AttnScale, n.LogitDivisor = 12, 0.22, 0.05, 8 },
	"glm4":           func(n *naive.Model) { n.PostNorms = true },
	"phi3-longrope":  longRope("rope_factors_long.weight"),
	"phi3-shortrope": longRope("rope_factors_short.weight"),
	"smollm3": func(n *naive.Model) {
		n.Unturned = func(l int) bool { return l%4 == 3 }
		n.Angle = func(_, i int) float64 { return naive.Frequency(5e6, i, n.RopeDim) }
	},
	"deepseek2":     deepseek2(naive.Latent{Rank: 512, Key: 96, Value: 32, Query: 48}),
	"deepseek2-kvb": deepseek2(naive.Latent{Rank: 64, Key: 48, Value: 32, Query: 48, Together: true}),
	"qwen35":        qwen35,
	"qwen35moe": func(n *naive.Model) {
		qwen35(n)
		n.Mix = naive.Mixture{Count: 8, Used: 2, Shared: 48, SharedGate: true}
	},
	"mistral3": func(n *naive.Model) {
		n.Angle = func(_, i int) float64 { return naive.Yarn(1e6, i, n.RopeDim, 16, 32) }
		n.Temperature = func(pos int) float64 { return 1 + 0.1*math.Log(1+math.Floor(float64(pos)/32)) }
	},
}

func gemma(n *naive.Model) { n.Halves, n.GELU, n.EmbedScale = true, true, math.Sqrt(float64(n.Dim)) }

func qwen35(n *naive.Model) {
	n.Halves, n.HeadNorms, n.FFNNorm = true, true, "post_attention_norm"
	n.Angle = func(_, i int) float64 { return naive.Frequency(1e7, i, n.RopeDim) }
}

func deepseek2(m naive.Latent) func(n *naive.Model) {
	return func(n *naive.Model) {
		n.Latent, n.Mix = m, naive.Mixture{Count: 8, Used: 2, Dense: 1, Shared: 32, Sigmoid: true, Scale: 2.5}
		n.Angle = func(_, i int) float64 { return naive.Yarn(10000, i, n.RopeDim, 4, 64) }
		n.AttnScale = math.Pow(1+0.1*math.Log(4), 2) / math.Sqrt(float64(m.Key))
	}
}

// longRope turns halves of a head with the factors of a table.
func longRope(table string) func(n *naive.Model) {
	return func(n *naive.Model) {
		n.Halves, n.Magnitude = true, 1.19
		n.Angle = func(_, i int) float64 { return naive.Frequency(10000, i, n.RopeDim) / n.Weights[table][i] }
	}
}

// TestGolden2026 compares tiny models with another engine's figures, with float arithmetic (float_top) and with the
// formulas. In one pass and token by token the bits are the same.
//
// tandem keeps keys and values as halves. The other engine keeps keys as floats here, so that it may be nearer to float arithmetic. What
// counts is how far tandem is from float arithmetic that rounds keys and values as the cache does: nearer than the other engine is to
// float_top. Without that rounding the formulas are float_top.
func TestGolden2026(t *testing.T) {
	for name, change := range golden2026 {
		t.Run(name, func(t *testing.T) {
			c, path := enginetest.ReadFigures(t, name)
			m := enginetest.Open(t, path, engine.Options{KVPages: engine.PagesFor(2, 192, 0)})
			square, count := enginetest.CheckPrompt(t, m, c)
			enginetest.CheckGreedy(t, m, c)
			ones := slices.Repeat([]int{1}, len(c.Tokens))
			whole := enginetest.InPieces(t, m, c.Tokens, []int{len(c.Tokens)})
			if err := enginetest.SameBits(whole, enginetest.InPieces(t, m, c.Tokens, ones)); err != nil {
				t.Errorf("in one pass and token by token: %v", err)
			}

			n := naive.FromFile(t, path)
			change(n)
			halves := c.Distance(func(i, id int) float64 { return float64(whole[i*m.Config().Vocab+id]) }, n.Forward(c.Tokens))
			n.Floats = true
			exact := n.Forward(c.Tokens)
			formulas, other := c.Distance(nil, exact), c.Distance(c.Other, exact)
			t.Logf("r.m.s. distance from float_top %.5f, the other engine's %.5f, formulas' %.5f; from formulas with halves %.5f",
				math.Sqrt(square/count), other, formulas, halves)
			if !(formulas < 0.0001) {
				t.Errorf("the formulas are %.5f from float arithmetic: they are not the reference's", formulas)
			}
			if !(halves < other) {
				t.Errorf("r.m.s. distance from float arithmetic with such a cache %.5f: the other engine: %.5f", halves, other)
			}
		})
	}
}

// TestNarrowHeads: heads that are no multiple of a group of outputs, whose queries and gates alternate in one tensor.
func TestNarrowHeads(t *testing.T) {
	for _, dim := range []int{8, 24, 40} {
		shape := family.Shape{Layers: 4, Dim: 64, Heads: 6, KV: 2, HeadDim: dim, FFN: 96, Words: 20, States: 4, Groups: 2}
		m := family.Make("qwen35", shape, uint64(dim))
		m.Set("rope.freq_base", float32(1e7))
		path := m.Write(t, t.TempDir())
		n := naive.FromFile(t, path)
		qwen35(n)
		tokens := []tandem.Token{5, 3, 90, 17, 4, 200, 33, 90, 17}
		got := enginetest.InPieces(t, enginetest.Open(t, path, engine.Options{KVPages: engine.PagesFor(2, 64, 0)}), tokens, []int{4, 5})
		vocab := n.Shapes["output.weight"][0]
		for i, want := range n.Forward(tokens) {
			for id, x := range want {
				if d := float64(got[i*vocab+id]) - x; !(math.Abs(d) < 0.01) {
					t.Fatalf("heads of %d: logit %d of token %d is %v, by the formulas %v", dim, id, i, got[i*vocab+id], x)
				}
			}
		}
	}
}

// TestGoldenMixtures compares tiny mixtures of experts, and Gemma 4, with another engine's figures, and says who is nearer to float
// arithmetic. In one pass and token by token the bits are the same.
func TestGoldenMixtures(t *testing.T) {
	for _, name := range mixtures {
		t.Run(name, func(t *testing.T) {
			c, path := enginetest.ReadFigures(t, name)
			m := enginetest.Open(t, path, engine.Options{KVPages: engine.PagesFor(2, 192, 0)})
			square, count := enginetest.CheckPrompt(t, m, c)
			ours, theirs := math.Sqrt(square/count), c.OtherDistance()
			t.Logf("r.m.s. distance from float arithmetic %.5f, the other engine's %.5f", ours, theirs)
			if ours > theirs {
				t.Errorf("r.m.s. distance from float arithmetic %.5f: want at most the other engine's %.5f", ours, theirs)
			}
			enginetest.CheckGreedy(t, m, c)
			ones := slices.Repeat([]int{1}, len(c.Tokens))
			if err := enginetest.SameBits(enginetest.InPieces(t, m, c.Tokens, []int{len(c.Tokens)}), enginetest.InPieces(t, m, c.Tokens,
				ones)); err != nil {
				t.Errorf("in one pass and token by token: %v", err)
			}
		})
	}
}

var mixtures = []string{"granitemoe", "qwen3moe", "gpt-oss", "gpt-oss-mxfp4", "gemma4", "gemma4-moe"}

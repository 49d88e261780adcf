package blocks_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
)

// sharedCases are models with an expert that every row uses, and with leading layers without experts. The architecture is one of this test:
// qwen3 with these experts.
func sharedCases(t *testing.T) map[string]naive.Case {
	arch.Families["plain share"], arch.Families["gated share"] = sharing(false), sharing(true)
	t.Cleanup(func() {
		delete(arch.Families, "plain share")
		delete(arch.Families, "gated share")
	})
	model := func(arch string, gated bool) *naive.Model {
		n := naive.Tiny("qwen3", 3).With("expert_count", uint32(6)).With("expert_used_count", uint32(2)).With(
			"leading_dense_block_count", uint32(1))
		n.Arch, n.Mix = arch, naive.Mixture{Count: 6, Used: 2, Dense: 1, Shared: 48, SharedGate: gated}
		return n
	}
	plain := model("plain share", false).With("expert_shared_count", uint32(2)).With("feed_forward_length", uint32(80)).With(
		"expert_feed_forward_length", uint32(24))
	plain.FFN = []int{80, 24, 24}
	return map[string]naive.Case{
		"plain": {Model: plain, Tokens: 40, Without: func(n *naive.Model) { n.Mix.Shared = 0 }},
		"gated": {Model: model("gated share", true).With("expert_shared_feed_forward_length", uint32(48)), Tokens: 40,
			Without: func(n *naive.Model) { n.Mix.SharedGate = false }},
	}
}

func sharing(gated bool) blocks.Family {
	return blocks.Family{
		Read: func(r *blocks.Reader, c *blocks.Config) {
			c.Rope.Halves = true
			r.LayersOfExperts(c, r.Dense(c))
			r.HeadSizes(c)
			r.RoPE(c)
			r.NoWindow(c)
			r.Experts(c, blocks.GateOfChosen, true)
			r.Shared(c, r.Optional("expert_shared_count", blocks.MaxExperts),
				r.Optional("expert_shared_feed_forward_length", blocks.MaxDim))
		},
		Layer: func(t *blocks.Tensors) []blocks.Part {
			shared := t.SharedExpert
			if gated {
				shared = func() blocks.SharedExpert { return t.SharedExpert().GatedShare(t) }
			}
			return []blocks.Part{t.Attention(t.HeadNorms, t.Separate), t.SharingExperts(t.Norm("ffn_norm.weight"), shared)}
		},
	}
}

// TestSharedExperts: logits are those of the formulas, and the bits of every device and division into passes are the same.
func TestSharedExperts(t *testing.T) {
	for name, c := range sharedCases(t) {
		t.Run(name, func(t *testing.T) {
			c.Model.Generate(3)
			path := c.Model.Write(t, t.TempDir())
			var first []float32
			for _, o := range enginetest.ExactOptions(t) {
				m := enginetest.Open(t, path, o)
				tokens := enginetest.RandomTokens(rand.New(rand.NewPCG(2, 9)), m, c.Tokens)
				out := enginetest.Forward(t, m, 0, engine.Part{Seq: enginetest.NewSeq(t, m, c.Tokens, 0), Extend: tokens,
					Want: engine.WantAll})
				if rms, _ := enginetest.Distance(out, c.Model.Forward(tokens)); !(rms < 4e-4) {
					t.Fatalf("%v: logits are %.2g from the formulas'", m.About().Kernels, rms)
				}
				logits := enginetest.InPieces(t, m, tokens, []int{c.Tokens})
				if err := enginetest.SameBits(logits, enginetest.InPieces(t, m, tokens, []int{1, 20, 3, c.Tokens - 24})); err != nil {
					t.Errorf("%v: in pieces: %v", m.About().Kernels, err)
				}
				if first == nil {
					first = logits
				}
				if err := enginetest.SameBits(first, logits); err != nil {
					t.Errorf("%v with %d threads: %v", m.About().Kernels, m.About().Threads, err)
				}
				n := enginetest.Forward(t, m, 0, engine.Part{Seq: enginetest.NewSeq(t, m, 3, 0), Extend: tokens[:3]}).Experts()
				if len(n) != 3 || n[2] < 2*2 || n[2] > 2*6 || m.Passes().Work().Experts != 2*2 {
					t.Errorf("passes use %v experts of 2 layers, one row %d", n, m.Passes().Work().Experts)
				}
				first, share := enginetest.WeightNamed(m, "blk.0.ffn_gate.weight"), enginetest.WeightNamed(m,
					"blk.1.ffn_gate_inp_shexp.weight")
				if first == nil || first.Experts != 0 || (share != nil) != (name == "gated") {
					t.Errorf("the first layer's gate is %+v, the second one's share %+v", first, share)
				}
				c.Without(c.Model)
				if rms, _ := enginetest.Distance(out, c.Model.Forward(tokens)); !(rms > 0.01) {
					t.Errorf("without its feature the model's logits are only %.2g away: the case shows nothing", rms)
				}
				c.Model.Mix.Shared, c.Model.Mix.SharedGate = 48, name == "gated"
			}
		})
	}
}

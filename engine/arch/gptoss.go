package arch

import (
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/kernels"
)

// gptoss (gpt-oss), a layer; every other attends through a window:
//
//	n = norm(x); q, k, v = W n + b; x += Wo attention(RoPE(q), RoPE(k), v) + b, each head with a further score without a value (sink)
//	n = norm(x); x += Σ w·(Wdown (silu(clamped (Wgate n + b)) ∘ clamped (Wup n + b)) + b) of the experts that the row chooses
//
// The second norm is named post_attention_norm. RoPE pairs halves of a head; YaRN's turns are not rounded to whole pairs.
var gptoss = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		c.Rope.Halves, c.Rope.ExactTurns, c.Curve = true, true, kernels.ClampedSiLU
		r.LayersOfExperts(c, 0)
		r.HeadSizes(c)
		r.RoPE(c)
		r.NeedWindow()
		r.Window(c, 0, 2)
		r.Experts(c, blocks.GateOfChosen, true)
	},
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.Separate, t.Sinks), t.Experts(t.Norm("post_attention_norm.weight"))}
	},
}

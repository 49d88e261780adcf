package arch

import "github.com/tandem-llm/tandem/engine/blocks"

// qwen2, a layer:
//
//	n = norm(x); q, k, v = W n + b; x += Wo attention(RoPE(q), RoPE(k), v)
//	n = norm(x); x += Wdown (silu(Wgate n) ∘ (Wup n))
//
// RoPE pairs halves of a head, in all Qwens.
var qwen2 = blocks.Family{
	Read: readQwen,
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.Separate), t.FeedForward(t.Norm("ffn_norm.weight"))}
	},
}

// qwen3 has no biases, and norms of q's and k's heads before RoPE.
var qwen3 = blocks.Family{
	Read: readQwen,
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.HeadNorms, t.Separate), t.FeedForward(t.Norm("ffn_norm.weight"))}
	},
}

// qwen3moe has experts in place of qwen3's feed-forward block: x += Σ w·expert(n) of those that the row chooses.
var qwen3moe = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		c.Rope.Halves = true
		r.LayersOfExperts(c, 0)
		r.HeadSizes(c)
		r.RoPE(c)
		r.NoWindow(c)
		r.Experts(c, blocks.GateOfChosen, true)
	},
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.HeadNorms, t.Separate), t.Experts(t.Norm("ffn_norm.weight"))}
	},
}

func readQwen(r *blocks.Reader, c *blocks.Config) {
	c.Rope.Halves = true
	r.Layers(c)
	r.HeadSizes(c)
	r.RoPE(c)
	r.NoWindow(c)
}

package arch

import "github.com/tandem-llm/tandem/engine/blocks"

// glm4, a layer:
//
//	n = norm(x); q, k, v = W n + b; x += norm(Wo attention(RoPE(q), RoPE(k), v))
//	n = norm(x); x += norm(Wdown (silu(Wgate n) ∘ (Wup n)))
//
// One tensor may hold the matrices of q, k and v, and holds those of gate and up. RoPE pairs neighbours.
var glm4 = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		r.Layers(c)
		r.HeadSizes(c)
		r.RoPE(c)
		r.NoWindow(c)
	},
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.PostNorm, t.Fused), t.FusedFeedForward(t.Norm("ffn_norm.weight")).PostNorm(t)}
	},
}

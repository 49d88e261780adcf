package arch

import "github.com/tandem-llm/tandem/engine/blocks"

// phi3, a layer:
//
//	n = norm(x); q, k, v = W n; x += Wo attention(RoPE(q), RoPE(k), v)
//	n = norm(x); x += Wdown (silu(Wgate n) ∘ (Wup n))
//
// One tensor holds the matrices of q, k and v, another those of gate and up. RoPE pairs halves of a head; its frequencies may be divided by
// one of two tables of factors (LongRoPE), which the context chooses.
var phi3 = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		c.Rope.Halves = true
		r.Layers(c)
		r.HeadSizes(c)
		r.LongRoPE(c)
		r.Window(c, 0, 0)
	},
	Model: func(f *blocks.Finder) { f.RopeFactors(false) },
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.Fused), t.FusedFeedForward(t.Norm("ffn_norm.weight"))}
	},
}

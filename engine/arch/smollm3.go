package arch

import "github.com/tandem-llm/tandem/engine/blocks"

// smollm3, a layer; every fourth has no RoPE:
//
//	n = norm(x); q, k, v = W n; x += Wo attention([RoPE](q), [RoPE](k), v)
//	n = norm(x); x += Wdown (silu(Wgate n) ∘ (Wup n))
//
// RoPE pairs neighbours.
var smollm3 = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		r.Layers(c)
		r.HeadSizes(c)
		r.RoPE(c)
		r.NoWindow(c)
		for i := range c.Shapes {
			c.Shapes[i].Unturned = (i+1)%4 == 0
		}
	},
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.Separate), t.FeedForward(t.Norm("ffn_norm.weight"))}
	},
}

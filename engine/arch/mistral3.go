package arch

import "github.com/tandem-llm/tandem/engine/blocks"

// mistral3 (Ministral 3), a layer; at position p queries are multiplied by t = 1 + β·ln(1 + ⌊p/context of training⌋):
//
//	n = norm(x); q, k, v = W n; x += Wo attention(t·RoPE(q), RoPE(k), v)
//	n = norm(x); x += Wdown (silu(Wgate n) ∘ (Wup n))
//
// RoPE pairs neighbours. Of YaRN's magnitude, a key takes a part off.
var mistral3 = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		const part = "rope.scaling.yarn_log_multiplier"
		r.Layers(c)
		r.HeadSizes(c)
		r.Knows(part)
		r.YaRN(c, func(m, factor float64) float64 {
			m *= 1 + float64(0.1*blocks.Ln(factor))
			return m / (1 + float64(float64(0.1*float64(r.Multiplier(part, 0)))*blocks.Ln(factor)))
		})
		r.NoWindow(c)
		r.Temperature(c)
	},
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.Separate), t.FeedForward(t.Norm("ffn_norm.weight"))}
	},
}

package arch

import (
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
)

// deepseek2 (DeepSeek V2, V3, R1), a layer, with one latent vector l of a position for all heads (blocks/latent.go says how):
//
//	n = norm(x); q = W [norm(W n)]; l = norm(W n); k = (W l of each head, RoPE(W n) of all); v = W l; x += Wo attention(q, k, v)
//	n = norm(x); x += Σ w·expert(n) of those that the row chooses, + shared(n)
//
// The first layers have a feed-forward block in place of experts. RoPE pairs neighbours. YaRN's magnitude is not in cosines and sines; its
// square is in the scale of scores.
var deepseek2 = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		const magnitude, groups = "rope.scaling.yarn_log_multiplier", "expert_group_count"
		c.NextnBeforeNorm = true
		r.Nextn(c)
		r.LayersOfExperts(c, r.Dense(c))
		r.Latent(c)
		r.YaRN(c, func(m, _ float64) float64 { return m })
		r.NoWindow(c)
		r.Experts(c, blocks.GateSoftmax, false)
		if n := r.Optional(groups, blocks.MaxExperts); n > 1 {
			r.Fail(tandem.Unsupported, "key %q is %d: tandem chooses among all experts, not within groups", r.Knows(groups), n)
		}
		r.Shared(c, r.Optional("expert_shared_count", blocks.MaxExperts), 0)
		r.Knows(magnitude)
		if m := 1.0; c.Rope.Kind == "yarn" && c.Rope.Factor > 1 {
			m += float64(float64(r.Multiplier(magnitude, 0)) * blocks.Ln(c.Rope.Factor))
			c.AttnScale = float32(float64(m*m) / math.Sqrt(float64(c.Latent.Key)))
		}
	},
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Latent(), t.SharingExperts(t.Norm("ffn_norm.weight"), t.SharedExpert)}
	},
}

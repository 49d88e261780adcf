package arch

import "github.com/tandem-llm/tandem/engine/blocks"

// granite, a layer, with numbers a to d from keys; the embedding is multiplied by a, logits are divided by d:
//
//	n = norm(x); q, k, v = W n; x += b·Wo attention(RoPE(q), RoPE(k), v), of scores c·qk
//	n = norm(x); x += b·Wdown (silu(Wgate n) ∘ (Wup n))
//
// RoPE pairs neighbours. A key switches it off in all layers.
var granite = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		r.Layers(c)
		readGranite(r, c)
	},
	Model: func(f *blocks.Finder) { f.RopeFactors(false) },
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.Separate), t.FeedForward(t.Norm("ffn_norm.weight"))}
	},
}

// granitemoe has experts in place of the feed-forward block.
var granitemoe = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		r.LayersOfExperts(c, 0)
		readGranite(r, c)
		r.Experts(c, blocks.GateOfChosen, true)
	},
	Model: granite.Model,
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.Separate), t.Experts(t.Norm("ffn_norm.weight"))}
	},
}

func readGranite(r *blocks.Reader, c *blocks.Config) {
	r.HeadSizes(c)
	r.LongRoPE(c)
	r.NoWindow(c)
	turned := r.Switch("rope.scaling.finetuned", true)
	for i := range c.Shapes {
		c.Shapes[i].Unturned = !turned
	}
	c.AttnScale, c.StatedScale = r.Multiplier("attention.scale", c.AttnScale), true
	c.EmbedScale = r.Multiplier("embedding_scale", 1)
	c.ResidualScale = r.Multiplier("residual_scale", 1)
	c.LogitScale = 1 / r.Multiplier("logit_scale", 1)
}

package arch

import "github.com/tandem-llm/tandem/engine/blocks"

// qwen35 (Qwen 3.5, Qwen3-Next), of four layers, the first three and the last:
//
//	n = norm(x); u, z, α, β = W n; x += Wout (norm of each head (delta net(conv(u), α, β)) ∘ silu(z))
//	n = norm(x); q, g, k, v = W n; x += Wo (attention(RoPE(norm(q)), RoPE(norm(k)), v) ∘ sigmoid(g))
//
// and then each: n = norm(x); x += Wdown (silu(Wgate n) ∘ (Wup n)). The norm before that is named post_attention_norm. Rows of q and g
// alternate in one tensor, head by head. Sections of RoPE are for pictures: all of a text's positions are the same in each.
var qwen35 = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		r.Nextn(c)
		r.Layers(c)
		readQwen35(r, c)
	},
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{mixQwen35(t), t.FeedForward(t.Norm("post_attention_norm.weight"))}
	},
}

// qwen35moe has experts in place of the feed-forward block, and one that every row uses: x += Σ w·expert(n) + sigmoid(Ws n)·shared(n).
var qwen35moe = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		r.Nextn(c)
		r.LayersOfExperts(c, 0)
		readQwen35(r, c)
		r.Experts(c, blocks.GateOfChosen, true)
		r.Shared(c, r.Optional("expert_shared_count", blocks.MaxExperts), r.Optional("expert_shared_feed_forward_length", blocks.MaxDim))
	},
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{mixQwen35(t), t.SharingExperts(t.Norm("post_attention_norm.weight"),
			func() blocks.SharedExpert { return t.SharedExpert().GatedShare(t) })}
	},
}

func readQwen35(r *blocks.Reader, c *blocks.Config) {
	c.Rope.Halves = true
	r.HeadSizes(c)
	r.RoPE(c)
	r.Knows("rope.dimension_sections")
	r.NoWindow(c)
	r.DeltaNets(c)
}

// mixQwen35 finds what mixes positions: attention or a delta net.
func mixQwen35(t *blocks.Tensors) blocks.Part {
	t.RightKind()
	if t.Shape.Recurrent {
		return t.DeltaNet()
	}
	return t.Attention(t.HeadNorms, t.GatedQueries, t.KeysValues, t.Output)
}

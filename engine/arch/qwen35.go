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
	Layer: func(t *blocks.Tensors) {
		if namesQwen35(t) {
			t.FeedForward()
		}
	},
	Pass: func(p *blocks.Planner, i int) {
		mixQwen35(p, i)
		p.FeedForward(i)
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
	Layer: func(t *blocks.Tensors) {
		if !namesQwen35(t) {
			return
		}
		if t.SharedExpert(); t.Shape.Shared > 0 {
			t.Row(&t.Mixture.Shared.Share, t.Name("ffn_gate_inp_shexp.weight"), t.C.Dim)
		}
		t.Experts()
	},
	Pass: func(p *blocks.Planner, i int) {
		mixQwen35(p, i)
		p.Mix(i)
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

// namesQwen35 finds the tensors of attention or of the delta net; false if the layer is of the other kind.
func namesQwen35(t *blocks.Tensors) bool {
	t.Norms("post_attention_norm.weight")
	if !t.RightKind() {
		return false
	}
	if t.Shape.Recurrent {
		t.DeltaNet()
		return true
	}
	t.HeadNorms()
	t.Interleaved(t.Name("attn_q.weight"), t.C.Dim, t.Shape.Heads*t.Shape.HeadDim, t.Shape.HeadDim, &t.Q, &t.AttnGate)
	t.KV()
	t.Output()
	return true
}

// mixQwen35 lays out what mixes positions.
func mixQwen35(p *blocks.Planner, i int) {
	if p.Shapes[i].Recurrent {
		p.DeltaNet(i)
	} else {
		p.Attention(i)
	}
}

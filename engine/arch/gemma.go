package arch

import (
	"math"

	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/kernels"
)

// gemma, a layer; the embedding is multiplied by √d:
//
//	n = norm(x); q, k, v = W n; x += Wo attention(RoPE(q), RoPE(k), v)
//	n = norm(x); x += Wdown (gelu(Wgate n) ∘ (Wup n))
//
// RoPE pairs halves of a head.
var gemma = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		readGemma(r, c)
		r.NoWindow(c)
	},
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.Separate), t.FeedForward(t.Norm("ffn_norm.weight"))}
	},
}

// gemma2 norms what both blocks add, caps scores and logits, and every other layer attends through a window:
//
//	n = norm(x); q, k, v = W n; x += norm(Wo attention(RoPE(q), RoPE(k), v))
//	n = norm(x); x += norm(Wdown (gelu(Wgate n) ∘ (Wup n)))
var gemma2 = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		readGemma(r, c)
		r.Window(c, 4096, 2)
		scaleScores(c, 46)
		c.AttnCap, c.FinalCap = r.SoftCap("attn_logit_softcapping", 50), r.SoftCap("final_logit_softcapping", 30)
	},
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.PostNorm, t.Separate), t.FeedForward(t.Norm("ffn_norm.weight")).PostNorm(t)}
	},
}

// gemma3 is gemma2 with norms of q's and k's heads before RoPE. Five of six layers have a window, and a base of RoPE of their own. Scores
// and logits are capped only if keys say so.
var gemma3 = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		readGemma(r, c)
		c.Rope.LocalBase = r.RopeBase("rope.freq_base_swa", 10000)
		r.Window(c, 0, 6)
		scaleScores(c, 62)
		c.AttnCap, c.FinalCap = r.SoftCap("attn_logit_softcapping", 0), r.SoftCap("final_logit_softcapping", 0)
	},
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.HeadNorms, t.PostNorm, t.Separate), t.FeedForward(t.Norm("ffn_norm.weight")).PostNorm(t)}
	},
}

func readGemma(r *blocks.Reader, c *blocks.Config) {
	c.Rope.Halves, c.Curve = true, kernels.GELU
	c.UsualEmbedScale = float32(math.Sqrt(float64(c.Dim)))
	c.EmbedScale = c.UsualEmbedScale
	r.Layers(c)
	r.HeadSizes(c)
	r.RoPE(c)
}

// scaleScores sets the scale of scores of the 27-billion models, 1/√(d/heads). They are recognised by their number of layers, since no key
// says it.
func scaleScores(c *blocks.Config, layers int) {
	if c.Layers == layers && c.Shapes[0].Heads > 0 {
		c.AttnScale = float32(1 / math.Sqrt(float64(c.Dim)/float64(c.Shapes[0].Heads)))
	}
}

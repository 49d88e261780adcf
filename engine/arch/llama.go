package arch

import "github.com/tandem-llm/tandem/engine/blocks"

// llama, a layer (Llama 1 to 3, Mistral 7B and their kin):
//
//	n = norm(x); q, k, v = W n; x += Wo attention(RoPE(q), RoPE(k), v)
//	n = norm(x); x += Wdown (silu(Wgate n) ∘ (Wup n))
//
// RoPE pairs neighbours. Llama 3.1 divides its frequencies by factors in a tensor.
var llama = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		r.Layers(c)
		r.HeadSizes(c)
		r.LongRoPE(c)
		r.Window(c, 0, 0)
	},
	Model: func(f *blocks.Finder) { f.RopeFactors(false) },
	Layer: func(t *blocks.Tensors) []blocks.Part {
		return []blocks.Part{t.Attention(t.Separate), t.FeedForward(t.Norm("ffn_norm.weight"))}
	},
}

// Draft is the family of drafts that read their target's hidden states (dovetail, eagle, eagle3, dflash). Their keys begin with the kind of
// the draft: layers as llama's, which may have norms of queries' and keys' heads (published drafts of Qwen 3's shape), and convolutions
// over the rows of a block (DFlash2).
var Draft = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		r.Layers(c)
		r.HeadSizes(c)
		r.RoPE(c)
		r.Window(c, 0, 0)
	},
	Model: llama.Model,
	Layer: func(t *blocks.Tensors) []blocks.Part {
		a, f := t.Attention(t.Separate, t.HeadNormsIf), t.FeedForward(t.Norm("ffn_norm.weight"))
		t.BlockConvs("attn", &a.In, &a.Out)
		t.BlockConvs("ffn", &f.In, &f.Out)
		return []blocks.Part{a, f}
	},
}

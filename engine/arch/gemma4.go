package arch

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/kernels"
)

// gemma4, a layer. x begins as √d·e, e the embedding. norm1 is a norm without weights. Most layers attend through a window, and their
// heads have another size than the others'. What is in brackets only some files have:
//
//	n = norm(x); q, k, v = W n; x += norm(Wo attention(RoPE(norm(q)), RoPE(norm(k)), norm1(v))); scores are not scaled
//	n = norm(x); y = Wdown (gelu(Wgate n) ∘ (Wup n))
//	x += norm(y), or, with experts, norm(norm(y) + norm(Σ w·expert(norm(x)))), of those that the row chooses
//	[x += norm(Wout (gelu(Win x) ∘ i)), i the layer's part of (e'·√size + norm(Wp e))/√2, e' from a second table of tokens]
//	x = s·x
//
// The last layers have no k and v: each reads those of the last layer of its kind that has. Where a layer has no matrix for values, they
// are its keys before their norm. RoPE pairs halves of a head. Layers with a window have a base of their own; the others have factors of
// frequencies, some of which make pairs stand still.
var gemma4 = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		r.LayerHeads(c)
		expert := r.ExpertWidths(c)
		if expert == nil {
			expert = make([]int, c.Layers)
		}
		r.Widths(c, r.PerLayer("feed_forward_length", nil, blocks.MaxDim, c.Layers), expert)
		c.UsualEmbedScale = float32(math.Sqrt(float64(c.Dim)))
		c.EmbedScale = c.UsualEmbedScale
		readGemma4(r, c)
		readShared(r, c)
		const input = "embedding_length_per_layer_input"
		if c.LayerInput = r.Optional(input, blocks.MaxDim); c.LayerInput > blocks.MaxDim/c.Layers {
			r.Fail(tandem.Corrupt, "key %q is %d: want at most %d in all %d layers", r.Knows(input), c.LayerInput, blocks.MaxDim, c.Layers)
		}
		if r.ExpertCount() > 0 {
			r.Experts(c, blocks.GateOfChosen, true)
		}
		c.AttnCap, c.FinalCap = r.SoftCap("attn_logit_softcapping", 0), r.SoftCap("final_logit_softcapping", 30)
	},
	Model:     modelGemma4,
	Layer:     layerGemma4,
	Enter:     inputsOfLayers,
	Assistant: &gemma4Assistant,
}

// gemma4Assistant is a draft whose layers are gemma4's, but for what files of a target alone say: they have no experts and no inputs, and
// read keys and values of the target. Logits are not capped, embeddings not scaled.
var gemma4Assistant = blocks.Family{
	Read: func(r *blocks.Reader, c *blocks.Config) {
		const guessing = "nextn_predict_layers"
		if n := r.Optional(guessing, blocks.MaxLayers); n != 0 && n != c.Layers {
			r.Fail(tandem.Corrupt, "key %q is %d: want all layers of an assistant, %q, %d", r.Knows(guessing), n, r.Arch+".block_count",
				c.Layers)
		}
		r.Layers(c)
		readGemma4(r, c)
	},
	Model: modelGemma4,
	Layer: layerGemma4,
}

// readGemma4 reads the sizes of heads, of both kinds of layers.
func readGemma4(r *blocks.Reader, c *blocks.Config) {
	c.Rope.Halves, c.Curve = true, kernels.GELU
	r.HeadSizes(c)
	c.AttnScale = 1
	r.LongRoPE(c)
	c.Rope.LocalBase = r.RopeBase("rope.freq_base_swa", 10000)
	r.NeedWindow()
	r.NeedPattern(c)
	r.Window(c, 0, 0)
	c.LocalHeadDim = r.Count("attention.key_length_swa", c.HeadDim, blocks.MaxHead)
	c.LocalRopeDim = r.Count("rope.dimension_count_swa", c.LocalHeadDim, blocks.MaxDim)
	if v := r.Count("attention.value_length_swa", c.LocalHeadDim, blocks.MaxDim); v != c.LocalHeadDim {
		r.Fail(tandem.Unsupported, "value length %d of layers with a window differs from key length %d", v, c.LocalHeadDim)
	}
	r.CheckHeads(c, c.LocalHeadDim, c.LocalRopeDim)
	for i := range c.Shapes {
		if l := &c.Shapes[i]; l.Local {
			l.HeadDim = c.LocalHeadDim
		}
	}
}

// readShared finds the layers that read what the last own layer of their kind keeps.
func readShared(r *blocks.Reader, c *blocks.Config) {
	const key = "attention.shared_kv_layers"
	shared := r.Optional(key, blocks.MaxLayers)
	if shared >= c.Layers {
		r.Fail(tandem.Corrupt, "key %q is %d: want at most %d, so that a layer keeps keys and values", r.Knows(key), shared, c.Layers-1)
	}
	for i := max(0, c.Layers-shared); i < c.Layers && r.Err == nil; i++ {
		l, own := &c.Shapes[i], c.Shapes[:c.Layers-shared]
		for l.Source = len(own) - 1; l.Source >= 0 && own[l.Source].Local != l.Local; l.Source-- {
		}
		if l.Source < 0 {
			kind := map[bool]string{true: "with a window", false: "without a window"}[l.Local]
			r.Fail(tandem.Corrupt, "layer %d, %s, reads the keys and values of an earlier layer of its kind: none of the %d layers that "+
				"keep their own is one (key %q)", i, kind, len(own), r.Knows(key))
		} else if of := own[l.Source]; of.KVHeads != l.KVHeads {
			r.Fail(tandem.Corrupt, "layer %d has %d key-value heads: want the %d of layer %d, whose keys and values it reads", i,
				l.KVHeads, of.KVHeads, l.Source)
		}
	}
}

func modelGemma4(f *blocks.Finder) {
	f.RopeFactors(true)
	if n := f.C.LayerInput; n > 0 {
		in, all := &f.W.Inputs, n*f.C.Layers
		f.Matrix(&in.Table, "per_layer_token_embd.weight", true, f.C.Vocab, all)
		f.Matrix(&in.Project, "per_layer_model_proj.weight", true, all, f.C.Dim)
		in.Norm = f.Vector("per_layer_proj_norm.weight", true, n)
	}
}

func layerGemma4(t *blocks.Tensors) []blocks.Part {
	scale, input := t.VecIf("layer_output_scale.weight", 1), inputOf(t)
	a := t.Attention(t.HeadNorms, t.PostNorm, t.Queries, func(a *blocks.Attention) { ownKeysValues(t, a) }, t.Output)
	parts := append([]blocks.Part{a, feedForwardGemma4(t)}, input...)
	if scale != nil && scale[0] != 1 {
		parts = append(parts, blocks.Scaled(scale[0]))
	}
	return parts
}

// ownKeysValues finds the matrices of keys and values of a layer that has some.
func ownKeysValues(t *blocks.Tensors, a *blocks.Attention) {
	if !t.Own() {
		return
	}
	t.ValueNorms(a)
	if t.Has("attn_v.weight") {
		t.KeysValues(a)
	} else {
		t.KeysAsValues(a)
	}
}

// feedForwardGemma4 finds a feed-forward block and, if the model has some, experts beside it.
func feedForwardGemma4(t *blocks.Tensors) blocks.Part {
	norm := t.Norm("ffn_norm.weight")
	if t.C.Experts.Count == 0 {
		return t.FeedForward(norm).PostNorm(t)
	}
	b := besideExperts(t)
	b.FeedForward = t.FeedForward(norm).PostNorm(t)
	return b
}

// beside is x += norm(norm(block) + norm(experts)).
type beside struct {
	*blocks.FeedForward
	router                              blocks.Router
	experts                             blocks.Units
	routerNorm, inNorm, densePost, post []float32 // (dim), of the inputs of router and experts, and of the outputs of block and experts
}

// besideExperts finds the tensors of experts beside the feed-forward block.
func besideExperts(t *blocks.Tensors) *beside {
	b, n := &beside{}, t.C.Experts.Count
	if t.Shape.Expert == 0 {
		t.Fail(tandem.Corrupt, "key %q is missing: want the inner size of an expert", t.C.Arch+".expert_feed_forward_length")
		return b
	}
	t.Mat(&b.router.W, "ffn_gate_inp.weight", n, t.C.Dim)
	b.routerNorm = slices.Clone(t.Vec("ffn_gate_inp.scale", t.C.Dim))
	for i := range b.routerNorm { // the router's input is divided by √d
		b.routerNorm[i] *= float32(1 / math.Sqrt(float64(t.C.Dim)))
	}
	b.inNorm = t.Vec("pre_ffw_norm_2.weight", t.C.Dim)
	b.densePost = t.Vec("post_ffw_norm_1.weight", t.C.Dim)
	b.post = t.Vec("post_ffw_norm_2.weight", t.C.Dim)
	b.experts = t.StackedUnits()
	b.router.Each = t.Vec("ffn_down_exps.scale", n)
	t.Traits |= blocks.BesideExperts
	return b
}

// Lay implements blocks.Part.
func (x *beside) Lay(p *blocks.Planner) {
	dense, joined, routed := p.BufOf("dense", p.Dim), p.BufOf("branch", p.Dim), p.ActOf("routed", p.Dim)
	x.In(p, func() {})
	x.Down.Into(p, x.Inner(p), dense, false)
	p.HeadNorm(dense, 1, x.densePost, p.NormEps)
	p.RMSNorm(p.X, x.routerNorm, p.NormEps, routed)
	route := x.router.Choose(p, routed)
	p.RMSNorm(p.X, x.inNorm, p.NormEps, p.Normed)
	p.Add(kernels.JoinExperts{In: x.experts.Apart(p, route), Route: route, Out: joined})
	p.NormAdd(joined, x.post, p.NormEps, dense)
	x.Out.Join(p, dense)
}

// inputsOfLayers computes the inputs of all layers, side by side. Each is normalised by itself. A row without a token has no e'.
func inputsOfLayers(p *blocks.Planner) {
	n, in := p.LayerInput, &p.W.Inputs
	if n == 0 {
		return
	}
	p.Inputs = p.Buf(n * p.Layers)
	ofTokens := p.Buf(n * p.Layers)
	p.Add(kernels.Embed{W: in.Table, Out: ofTokens, Blank: true})
	p.Feed(p.X, p.Normed)
	p.MatMul(in.Project, p.Normed, p.Inputs, kernels.MatMulOpt{})
	p.Scale(p.Inputs, float32(1/math.Sqrt(float64(p.Dim))))
	p.HeadNorm(p.Inputs, p.Layers, in.Norm, p.NormEps)
	p.AddScaled(ofTokens, float32(math.Sqrt(float64(n))), p.Inputs)
	p.Scale(p.Inputs, float32(1/math.Sqrt2))
}

// layerInput is x += norm(W (gelu(G x) ∘ input)).
type layerInput struct {
	gate        kernels.W
	out         blocks.Branch
	post        blocks.Exit
	layer, size int
}

// inputOf finds what a layer does with its input, if the model's layers have some.
func inputOf(t *blocks.Tensors) []blocks.Part {
	n := t.C.LayerInput
	if n == 0 {
		return nil
	}
	x := &layerInput{layer: t.I, size: n}
	t.Mat(&x.gate, "inp_gate.weight", n, t.C.Dim)
	t.Mat(&x.out.W, "proj.weight", t.C.Dim, n)
	x.post = blocks.PostNormed(t.Vec("post_norm.weight", t.C.Dim))
	return []blocks.Part{x}
}

// Lay implements blocks.Part.
func (x *layerInput) Lay(p *blocks.Planner) {
	n := x.size
	gate, mine, act := p.BufOf("input gate", n), p.BufOf("input", n), p.ActOf("input activated", n)
	p.Feed(p.X, p.Normed)
	p.Stage(fmt.Sprintf("layer %d, its input", x.layer))
	p.MatMul(x.gate, p.Normed, gate, kernels.MatMulOpt{})
	p.Add(kernels.CopyHeads{In: p.Inputs, Out: mine, Heads: 1, From: x.layer * n, Dim: n})
	p.Add(kernels.Gate{Curve: p.Curve, Gate: gate, Up: mine, Out: act})
	x.out.Leave(p, act, x.post)
}

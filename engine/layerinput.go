package engine

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// layerInputs are what each layer gets of the token beside the residual stream (gemma4): from a table of its own, and from the embedding.
// The zero value is a model without.
type layerInputs struct {
	table, project kernels.W
	norm           []float32 // (size)
}

// layerInput is what a layer does with its input.
type layerInput struct {
	gate, out kernels.W
	post      []float32 // (dim)
}

// readLayerInput reads the size of a layer's input; 0: none.
func (h *hyper) readLayerInput(c *Config) {
	if !slices.Contains(c.traits.reads, keyLayerInput) {
		return
	}
	n, err := h.file.IntOr(h.arch+"."+keyLayerInput, 0, maxDim, 0)
	if h.keep(err); n > maxDim/c.Layers {
		h.fail(tandem.Corrupt, "key %q is %d: want at most %d in all %d layers", h.arch+"."+keyLayerInput, n, maxDim, c.Layers)
	}
	c.layerInput = n
}

func (c *catalog) collectLayerInputs(in *layerInputs, cfg *Config) {
	if cfg.layerInput == 0 {
		return
	}
	all := cfg.layerInput * cfg.Layers
	c.matrix(&in.table, "per_layer_token_embd.weight", true, cfg.Vocab, all)
	c.matrix(&in.project, "per_layer_model_proj.weight", true, all, cfg.Dim)
	in.norm = c.vector("per_layer_proj_norm.weight", true, cfg.layerInput)
}

func (c *catalog) collectLayerInput(l *layer, cfg *Config, name func(string) string) {
	if l.scale = 1; cfg.traits.layerScale {
		if v := c.vector(name("layer_output_scale.weight"), false, 1); v != nil {
			l.scale = v[0]
		}
	}
	if cfg.layerInput == 0 {
		return
	}
	c.matrix(&l.input.gate, name("inp_gate.weight"), true, cfg.layerInput, cfg.Dim)
	c.matrix(&l.input.out, name("proj.weight"), true, cfg.Dim, cfg.layerInput)
	l.input.post = c.vector(name("post_norm.weight"), true, cfg.Dim)
}

// layerInputs computes the inputs of all layers, side by side: (e·√size + norm(W x/√d)) / √2, where e is what the table has for the
// token. Each layer's input is normalised by itself. A row without a token has no e.
func (b *planner) layerInputs() {
	n, in := b.layerInput, &b.w.inputs
	if n == 0 {
		return
	}
	b.inputs = b.Buf(n * b.Layers)
	ofTokens := b.Buf(n * b.Layers)
	b.Add(kernels.Embed{W: in.table, Out: ofTokens, Blank: true})
	b.Feed(b.x, b.normed)
	b.MatMul(in.project, b.normed, b.inputs, kernels.MatMulOpt{})
	b.Scale(b.inputs, float32(1/math.Sqrt(float64(b.Dim))))
	b.HeadNorm(b.inputs, b.Layers, in.norm, b.NormEps)
	b.AddScaled(ofTokens, float32(math.Sqrt(float64(n))), b.inputs)
	b.Scale(b.inputs, float32(1/math.Sqrt2))
}

// endLayer ends layer i: x += norm(W (gelu(G x) ∘ input)), then x is scaled.
func (b *planner) endLayer(i int) {
	l, n := &b.w.layers[i], b.layerInput
	if n > 0 {
		gate, mine, act := b.buf("input gate", n), b.buf("input", n), b.act("input activated", n)
		b.Feed(b.x, b.normed)
		b.Stage(fmt.Sprintf("layer %d, its input", i))
		b.MatMul(l.input.gate, b.normed, gate, kernels.MatMulOpt{})
		b.Add(kernels.CopyHeads{In: b.inputs, Out: mine, Heads: 1, From: i * n, Dim: n})
		b.Add(kernels.Gate{Curve: b.traits.curve, Gate: gate, Up: mine, Out: act})
		b.add(l.input.out, act, nil, l.input.post)
	}
	if l.scale != 1 {
		b.Scale(b.x, l.scale)
	}
}

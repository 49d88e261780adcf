package blocks

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// LayerInputs are what each layer gets of the token beside the residual stream (gemma4): from a table of its own, and from the embedding.
// The zero value is a model without.
type LayerInputs struct {
	Table, Project kernels.W
	Norm           []float32 // (size)
}

// LayerInput is what a layer does with its input.
type LayerInput struct {
	Gate, Out kernels.W
	Post      []float32 // (dim)
}

// readLayerInput reads the size of a layer's input; 0: none.
func (h *Reader) readLayerInput(c *Config) {
	if !slices.Contains(c.Traits.Reads, keyLayerInput) {
		return
	}
	n, err := h.File.IntOr(h.Arch+"."+keyLayerInput, 0, MaxDim, 0)
	if h.Keep(err); n > MaxDim/c.Layers {
		h.Fail(tandem.Corrupt, "key %q is %d: want at most %d in all %d layers", h.Arch+"."+keyLayerInput, n, MaxDim, c.Layers)
	}
	c.LayerInput = n
}

func (c Finder) collectLayerInputs(in *LayerInputs, cfg *Config) {
	if cfg.LayerInput == 0 {
		return
	}
	all := cfg.LayerInput * cfg.Layers
	c.Matrix(&in.Table, "per_layer_token_embd.weight", true, cfg.Vocab, all)
	c.Matrix(&in.Project, "per_layer_model_proj.weight", true, all, cfg.Dim)
	in.Norm = c.Vector("per_layer_proj_norm.weight", true, cfg.LayerInput)
}

func (c Finder) collectLayerInput(l *Layer, cfg *Config, name func(string) string) {
	if l.Scale = 1; cfg.Traits.LayerScale {
		if v := c.Vector(name("layer_output_scale.weight"), false, 1); v != nil {
			l.Scale = v[0]
		}
	}
	if cfg.LayerInput == 0 {
		return
	}
	c.Matrix(&l.Input.Gate, name("inp_gate.weight"), true, cfg.LayerInput, cfg.Dim)
	c.Matrix(&l.Input.Out, name("proj.weight"), true, cfg.Dim, cfg.LayerInput)
	l.Input.Post = c.Vector(name("post_norm.weight"), true, cfg.Dim)
}

// LayerInputs computes the inputs of all layers, side by side: (e·√size + norm(W x/√d)) / √2, where e is what the table has for the
// token. Each layer's input is normalised by itself. A row without a token has no e.
func (b *Planner) LayerInputs() {
	n, in := b.LayerInput, &b.W.Inputs
	if n == 0 {
		return
	}
	b.inputs = b.Buf(n * b.Layers)
	ofTokens := b.Buf(n * b.Layers)
	b.Add(kernels.Embed{W: in.Table, Out: ofTokens, Blank: true})
	b.Feed(b.X, b.Normed)
	b.MatMul(in.Project, b.Normed, b.inputs, kernels.MatMulOpt{})
	b.Scale(b.inputs, float32(1/math.Sqrt(float64(b.Dim))))
	b.HeadNorm(b.inputs, b.Layers, in.Norm, b.NormEps)
	b.AddScaled(ofTokens, float32(math.Sqrt(float64(n))), b.inputs)
	b.Scale(b.inputs, float32(1/math.Sqrt2))
}

// EndLayer ends layer i: x += norm(W (gelu(G x) ∘ input)), then x is scaled.
func (b *Planner) EndLayer(i int) {
	l, n := &b.W.Layers[i], b.LayerInput
	if n > 0 {
		gate, mine, act := b.buf("input gate", n), b.buf("input", n), b.act("input activated", n)
		b.Feed(b.X, b.Normed)
		b.Stage(fmt.Sprintf("layer %d, its input", i))
		b.MatMul(l.Input.Gate, b.Normed, gate, kernels.MatMulOpt{})
		b.Add(kernels.CopyHeads{In: b.inputs, Out: mine, Heads: 1, From: i * n, Dim: n})
		b.Add(kernels.Gate{Curve: b.Traits.Curve, Gate: gate, Up: mine, Out: act})
		b.add(l.Input.Out, act, nil, l.Input.Post)
	}
	if l.Scale != 1 {
		b.Scale(b.X, l.Scale)
	}
}

package blocks

import (
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// Layer holds one transformer block's weights; biases are nil where the file has none.
type Layer struct {
	AttnNorm, FFNNorm          []float32 // (dim)
	AttnPost, FFNPost          []float32 // (dim), norms of the outputs of attention and feed-forward; nil: none
	QNorm, KNorm, VNorm        []float32 // (headDim); nil: none
	Q, K, V, O                 kernels.W
	SameKV                     bool // values are the keys before their norm
	QBias, KBias, VBias, OBias []float32
	Gate, Up, Down             kernels.W
	GateBias, UpBias, DownBias []float32
	Sinks                      []float32 // (heads), scores without a value; nil: none
	Mixture                    Mixture   // in place of gate, up and down, or beside them, if the model has experts
	Input                      LayerInput
	Scale                      float32    // of what the layer leaves
	AttnGate                   kernels.W  // of attention's output; None: it has no gate
	Delta                      DeltaNet   // in place of attention, if the layer is recurrent
	Compressed                 Compressed // of a model with latent attention
	AttnConv, FFNConv          *BlockConv // around attention and feed-forward of a block draft; nil: none
}

// LayerInputs are what each layer gets of the token beside the residual stream: from a table of its own, and from the embedding.
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

// Weights are a model's parameters: matrices by their handle in the program, vectors as they are. Head is Embed if the file has no
// output matrix.
type Weights struct {
	Embed, Head kernels.W
	OutputNorm  []float32
	RopeFactors []float32 // (ropeDim/2), or nil
	Inputs      LayerInputs
	Layers      []Layer
	Second      *Second // of the first layer; nil: none
}

// Second is what attention in the first layer reads beside the residual stream x (EAGLE-3): its q, k and v are W norm(x) + W' in.
type Second struct {
	Norm    []float32   // of x, in place of the layer's own
	Stays   bool        // x is that norm from then on, in the residual stream too
	Q, K, V kernels.W   // W'
	In      kernels.Act // (rows, d)
}

// Finder finds the tensors of a model of shape C in its file, and puts them into W.
type Finder struct {
	*tensors.Catalog
	C    *Config
	W    *Weights
	Bare bool // the first layer may have no norm before attention: a draft's
}

// Collect finds every tensor of a model. Others are refused.
func (f *Finder) Collect() {
	c, w := f.C, f.W
	f.Matrix(&w.Embed, "token_embd.weight", true, c.Vocab, c.Dim)
	w.Head = w.Embed
	if rows := len(c.Outputs); rows > 0 {
		f.Matrix(&w.Head, "output.weight", true, rows, c.Dim)
	} else {
		f.Matrix(&w.Head, "output.weight", false, c.Vocab, c.Dim)
	}
	w.OutputNorm = f.Vector("output_norm.weight", true, c.Dim)
	f.CollectLayers()
	if f.Err != nil {
		return
	}
	f.LeaveOutTowers()
	for i := c.Layers; i < c.Layers+c.Nextn; i++ {
		for _, t := range f.File.Tensors() {
			if strings.HasPrefix(t.Name, fmt.Sprintf("blk.%d.", i)) {
				f.Skip(t.Name)
			}
		}
	}
	f.RefuseOthers(c.Arch)
}

// CollectLayers finds the tensors of all layers, and those that the architecture has beside them.
func (f *Finder) CollectLayers() {
	if f.C.Family.Model != nil {
		f.C.Family.Model(f)
	}
	f.W.Layers = make([]Layer, f.C.Layers)
	for i := range f.W.Layers {
		l := &f.W.Layers[i]
		l.Scale, l.AttnGate, l.Mixture.Shared.Share = 1, kernels.None, kernels.None
		f.C.Family.Layer(&Tensors{Finder: f, Layer: l, Shape: f.C.Shapes[i], I: i})
		if f.Err != nil {
			return
		}
	}
}

// Tensors finds the tensors of layer I.
type Tensors struct {
	*Finder
	*Layer
	Shape LayerShape
	I     int
}

// Name returns the whole name of a tensor of the layer.
func (t *Tensors) Name(name string) string { return fmt.Sprintf("blk.%d.%s", t.C.First+t.I, name) }

// Has reports whether the layer has a tensor.
func (t *Tensors) Has(name string) bool { return t.File.Tensor(t.Name(name)) != nil }

// Mat finds a (rows, cols) matrix, rows being outputs.
func (t *Tensors) Mat(into *kernels.W, name string, rows, cols int) {
	t.Matrix(into, t.Name(name), true, rows, cols)
}

// Vec finds a vector of f32 numbers, of this length or shape.
func (t *Tensors) Vec(name string, shape ...int) []float32 {
	return t.Vector(t.Name(name), true, shape...)
}

// VecIf finds a vector that may be missing, and then is nil.
func (t *Tensors) VecIf(name string, shape ...int) []float32 {
	return t.Vector(t.Name(name), false, shape...)
}

// Norms finds the norms before attention and before the feed-forward block, which has this name.
func (t *Tensors) Norms(feedForward string) {
	t.AttnNorm = t.Vector(t.Name("attn_norm.weight"), t.I > 0 || !t.Bare, t.C.Dim)
	t.FFNNorm = t.Vec(feedForward, t.C.Dim)
}

// PostNorm finds the norm of attention's output.
func (t *Tensors) PostNorm() { t.AttnPost = t.Vec("post_attention_norm.weight", t.C.Dim) }

// PostFFNorm finds the norm of the feed-forward block's output.
func (t *Tensors) PostFFNorm() { t.FFNPost = t.Vec("post_ffw_norm.weight", t.C.Dim) }

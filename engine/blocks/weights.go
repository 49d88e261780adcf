package blocks

import (
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// LayerInputs are what each layer gets of the token beside the residual stream: from a table of its own, and from the embedding.
// The zero value is a model without.
type LayerInputs struct {
	Table, Project kernels.W
	Norm           []float32 // (size)
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

// Second is a second input of attention in the first layer (EAGLE-3): q, k and v are W norm(x) + W' In, x being the residual stream. Its
// Entrance replaces that layer's own norm; Norm, which the file has as the layer's norm, is for what In is made of.
type Second struct {
	Entrance
	Norm     []float32   // of what In is made of
	In       kernels.Act // (rows, d)
	products []Product   // W'
}

// Finder finds the tensors of a model of shape C in its file, and puts them into W. The first error stays in the Catalog's Err.
type Finder struct {
	*tensors.Catalog
	C    *Config
	W    *Weights
	Bare bool // the first layer may have no norm before attention: a draft's

	Borrows bool // layers read another model's keys and values
}

// Collect finds every tensor of a model, and fails if the file has others. The caller checks Err.
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

// CollectLayers finds the tensors of all layers, and those of Family.Model. The caller checks Err.
func (f *Finder) CollectLayers() {
	if f.C.Family.Model != nil {
		f.C.Family.Model(f)
	}
	f.W.Layers = make([]Layer, f.C.Layers)
	for i := range f.W.Layers {
		t := &Tensors{Finder: f, Shape: f.C.Shapes[i], I: i}
		f.W.Layers[i] = Layer{Parts: f.C.Family.Layer(t), Traits: t.Traits}
		if f.Err != nil {
			return
		}
	}
}

// Tensors finds the tensors of layer I.
type Tensors struct {
	*Finder
	Shape  LayerShape
	I      int
	Traits Traits // of what has been found
}

// Name returns the whole name of a tensor of the layer: "blk.3." before name in layer 3.
func (t *Tensors) Name(name string) string { return fmt.Sprintf("blk.%d.%s", t.C.First+t.I, name) }

// Has reports whether the layer has a tensor.
func (t *Tensors) Has(name string) bool { return t.File.Tensor(t.Name(name)) != nil }

// Mat asks for a (rows, cols) matrix, rows being outputs: Catalog.Matrix, required.
func (t *Tensors) Mat(into *kernels.W, name string, rows, cols int) {
	t.Matrix(into, t.Name(name), true, rows, cols)
}

// Vec reads a vector of f32 numbers of this length or shape. It returns nil if that is missing or has another type or shape.
func (t *Tensors) Vec(name string, shape ...int) []float32 {
	return t.Vector(t.Name(name), true, shape...)
}

// VecIf is Vec for a vector that may be missing; nil if it is.
func (t *Tensors) VecIf(name string, shape ...int) []float32 {
	return t.Vector(t.Name(name), false, shape...)
}

// Norm finds the norm of that name, (d), and returns the entrance with it.
func (t *Tensors) Norm(name string) Entrance { return Normed(t.Vec(name, t.C.Dim)) }

// attentionNorm finds what attention, or what is in its place, is entered by.
func (t *Tensors) attentionNorm() Entrance {
	norm := t.Vector(t.Name("attn_norm.weight"), t.I > 0 || !t.Bare, t.C.Dim)
	switch second := t.W.Second; {
	case t.I == 0 && second != nil:
		second.Norm = norm
		return second.Entrance
	case norm == nil:
		return Bare
	}
	return Normed(norm)
}

// exit returns how parts join the residual stream by the model's shape.
func (t *Tensors) exit() Exit {
	if t.C.ResidualScale != 1 {
		return Weighed(t.C.ResidualScale)
	}
	return Added
}

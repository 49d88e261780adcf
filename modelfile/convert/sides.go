package convert

import (
	"context"
	"fmt"
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// typeOfSide returns the type of a side file's tensor. Prompt embeddings are few and read row by row: they stay floats.
func (m *mix) typeOfSide(name string, shape []int, was gguf.Type) gguf.Type {
	if name == "ppd.embd.weight" && !isFloat(m.most) {
		if isFloat(was) {
			return was
		}
		return gguf.F16
	}
	return m.typeOf(name, shape, was)
}

// planSide returns the tensors of the side file f for its target expanded to the shape, and the keys of the file to write.
//
// The states that a side file reads are those of its target, with zeros from d on: the residual stream of an expanded model has its
// values unscaled, and after the final norm the factor √(d/D) of that norm's weights cancels the one by which the wider state's root
// mean square is smaller. So are its embeddings, and its output matrix has zero columns there. So the side file computes the same with its
// matrices in one corner:
//
//   - medusa: W has zeros around it, so the additional elements of z stay SiLU(0) = 0.
//   - ppd: the embeddings have zeros after them, as those of tokens do.
//   - dovetail, eagle: the sum of taps and the fusion give zeros from d on (its gate is ½ there, of two zeros), and the blocks grow as a
//     model's do, with additional heads and feed-forward units that work for nothing. All norms have weights times √(d/D), with
//     epsilon·d/D.
//   - eagle3: the same if the draft is as wide as the target; if not, only the inputs of fc grow.
//
// The number of blocks stays: taps name layers of the original model, which come first in the expanded one.
func planSide(f *gguf.File, shape Shape, typ string) (*expansion, *gguf.Writer, error) {
	was, err := side.Read(f)
	if err != nil {
		return nil, nil, err
	}
	to, err := grown(f, was, shape)
	if err != nil {
		return nil, nil, err
	}
	if typ == "" {
		typ = keptSideType(f)
	}
	r, err := findRecipe(typ)
	if err != nil {
		return nil, nil, err
	}
	e := &expansion{file: f, taken: map[string]bool{}, mix: &mix{recipe: r, layers: was.Blocks}}
	shrink := 0.0
	if w, n := widthOf(was), widthOf(to); w != n {
		shrink = math.Sqrt(float64(w) / float64(n))
	}
	slots := to.Slots()
	for i, slot := range was.Slots() {
		p := part{name: slot.Name, was: slot.Shape, to: slots[i].Shape, optional: slot.Optional, random: slot.Growth == side.Random}
		if slot.Growth == side.Norm {
			p.scale = shrink
		}
		t := e.source(&p)
		if e.err != nil {
			return nil, nil, e.err
		}
		if t == nil {
			continue
		}
		made := tensor{name: p.name, typ: e.mix.typeOfSide(p.name, p.to, t.Type), shape: p.to, fill: p.matrix(t)}
		if len(p.to) == 1 {
			made.fill = p.vector(t)
		}
		e.tensors = append(e.tensors, made)
	}
	w := gguf.KeysOf(f)
	to.SetKeys(w)
	if name, err := f.StringOr("general.name", ""); err == nil && name != "" {
		w.Set("general.name", fmt.Sprintf("%s expanded to d %d", name, to.Dim))
	}
	e.mix.keys(w)
	return e, w, nil
}

// keptSideType returns the type that matrices have for type "": that of the largest if it is a float, else f16.
func keptSideType(f *gguf.File) string {
	var most *gguf.Tensor
	for i := range f.Tensors() {
		if t := &f.Tensors()[i]; len(t.Shape) > 1 && (most == nil || t.Elements() > most.Elements()) {
			most = t
		}
	}
	if most != nil && isFloat(most.Type) {
		return most.Type.String()
	}
	return "f16"
}

// widthOf returns the width of the states that a side file computes with.
func widthOf(s *side.Spec) int {
	if s.Kind.IsDraft() {
		return s.Draft.Width
	}
	return s.Dim
}

// grown returns the spec for the expanded target.
func grown(f *gguf.File, was *side.Spec, shape Shape) (*side.Spec, error) {
	fail := func(format string, args ...any) error {
		return tandem.Errorf(op, tandem.Invalid, "expanding %s to %s: %w", f.Path(), shape, fmt.Errorf(format, args...))
	}
	if was.Kind == side.MTP {
		return nil, fail("it holds a layer for multi-token prediction, and models with such layers cannot be expanded")
	}
	to := *was
	to.Dim = shape.Dim
	if shape.Dim < was.Dim || shape.Dim > maxDim {
		return nil, fail("%d D: want %d, as the target has, to %d", shape.Dim, was.Dim, maxDim)
	}
	for _, tap := range was.Taps {
		if shape.Layers < tap {
			return nil, fail("%d layers: the side file reads the state after layer %d", shape.Layers, tap)
		}
	}
	if !was.Kind.IsDraft() {
		return &to, nil
	}
	if was.Draft.Width != was.Dim {
		if was.Draft.Norms.States != "" && to.Dim != was.Dim { // whose epsilon would have to grow without the other norms'
			return nil, fail("a draft of width %d norms the target's states of %d: want a draft as wide as its target", was.Draft.Width,
				was.Dim)
		}
		return &to, nil
	}
	if was.Draft.Block.ConvTaps > 0 && to.Dim != was.Dim {
		return nil, fail("its convolutions have weights for groups of columns, and in wider rows there would be more groups")
	}
	d, old := &to.Draft, was.Draft
	d.Width, d.FFN = shape.Dim, shape.FFN
	group := old.Heads / old.KVHeads
	d.Heads, d.KVHeads = shape.Heads, shape.KVHeads
	if shape.Heads == 0 && shape.KVHeads == 0 {
		d.Heads, d.KVHeads = shape.Dim/old.HeadDim, shape.Dim/old.HeadDim/group
	}
	switch {
	case d.FFN < old.FFN || d.FFN > maxDim:
		return nil, fail("%d FFN: want %d, as the draft has, to %d", d.FFN, old.FFN, maxDim)
	case d.Heads < old.Heads || d.KVHeads < old.KVHeads || d.Heads > maxLayers:
		return nil, fail("%d heads and %d key heads: want at least %d and %d, as the draft has, and at most %d", d.Heads, d.KVHeads,
			old.Heads,
			old.KVHeads, maxLayers)
	case d.Heads != d.KVHeads*group:
		return nil, fail("%d heads and %d key heads: want %d heads for a key head, as in the draft", d.Heads, d.KVHeads, group)
	case !f.Has(string(was.Kind)+".attention.key_length") && d.Heads*d.HeadDim != d.Width:
		return nil, fail("%d heads of D %d: want a multiple of the draft's head size %d as D, and as many heads as it has room for",
			d.Heads,
			d.Width, d.HeadDim)
	}
	d.Eps = old.Eps * float64(old.Width) / float64(d.Width)
	if shape.Context > 0 {
		d.Context = shape.Context
	}
	return &to, nil
}

// quantizeSide is Quantize for a side file.
func quantizeSide(ctx context.Context, f *gguf.File, out string, r *recipe, again bool, o Options) (*Result, error) {
	s, err := side.Read(f)
	if err != nil {
		return nil, err
	}
	m := &mix{recipe: r, layers: s.Blocks}
	all := f.Tensors()
	tensors := make([]tensor, len(all))
	for i := range all {
		if tensors[i], err = m.restore(f.Path(), &all[i], again); err != nil {
			return nil, err
		}
	}
	w := gguf.KeysOf(f)
	m.keys(w)
	return write(ctx, f.Path(), out, w, tensors, o)
}

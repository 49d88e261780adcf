package convert

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// Quantize writes the model or side file at in to out with its weights stored as the named type, see Types. Quantising
// weights that are quantised already loses precision again, so again must be true for them; weights
// that already have the wanted type are copied, and so are those in MXFP4 unless again is true. Errors: Invalid
// (type, paths), Corrupt (input, weights that are not finite), Unsupported (types that cannot be read, weights too
// large for the type), Exhausted (disk), Canceled.
func Quantize(ctx context.Context, in, out, typ string, again bool, o Options) (*Result, error) {
	r, err := findRecipe(typ)
	if err != nil {
		return nil, err
	}
	if err := checkOut(in, out, o.Force); err != nil {
		return nil, err
	}
	f, err := gguf.Open(in)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if side.Is(f) {
		return quantizeSide(ctx, f, out, r, again, o)
	}
	_, layers, err := layersOf(f)
	if err != nil {
		return nil, err
	}
	m := r.mixOf(f, layers)
	all := f.Tensors()
	tensors := make([]tensor, len(all))
	for i := range all {
		if tensors[i], err = m.restore(f.Path(), &all[i], again); err != nil {
			return nil, err
		}
	}
	w := gguf.KeysOf(f)
	m.keys(w)
	if err := keepLineage(ctx, f, w); err != nil {
		return nil, err
	}
	return write(ctx, f.Path(), out, w, tensors, o)
}

// restore returns t as it will be stored.
func (m *mix) restore(path string, t *gguf.Tensor, again bool) (tensor, error) {
	to := tensor{name: t.Name, typ: t.Type, shape: t.Shape}
	block, _ := t.Type.Block()
	if isFloat(t.Type) || block > 1 { // the others are integers
		to.typ = m.typeOfSide(t.Name, t.Shape, t.Type)
	}
	if t.Type == gguf.MXFP4 && !again || gguf.Tower(t.Name) != "" {
		to.typ = t.Type // a model's own format, in which it was trained, stays; so does what tandem does not compute with
	}
	switch {
	case to.typ == t.Type && !isFloat(t.Type), gguf.Tower(t.Name) != "":
		to.bytes = t
		return to, nil
	case !decodable(t.Type):
		return to, tandem.Errorf(op, tandem.Unsupported,
			"%s: tensor %q is %s, which tandem cannot convert: want a model of f32, f16 or bf16", path, t.Name, t.Type)
	case !isFloat(t.Type) && !again:
		return to, tandem.Errorf(op, tandem.Invalid,
			"%s: tensor %q is %s: quantising again loses more; want a model of f32, f16 or bf16, or --allow-requantize",
			path, t.Name, t.Type)
	}
	to.fill = func(dst []float32, buf *[]byte, row int) error {
		return readRows(t, dst, t.Shape[0], buf, row, len(dst)/t.Shape[0])
	}
	return to, nil
}

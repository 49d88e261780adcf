package convert

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

const (
	embedName  = "token_embd.weight"
	outputName = "output.weight"
)

// Trim writes the model at in to out as a draft that can say the tokens in keep alone: its output matrix has their rows, in this order,
// and the key gguf.OutputIDsKey says which they are. The embedding stays whole, since a draft reads all that the target has said. With
// typ, see Types, matrices are stored as that type, also those that are quantised already: what a draft loses in precision costs
// acceptance only. An embedding that is quantised stays as it is, since a pass looks up a row of it and is no faster with fewer bits.
// With typ "" all is copied. vocab is the size of the vocabulary; keep is ascending. Errors: as Quantize's, and Invalid
// for a side file or one that is trimmed already.
func Trim(ctx context.Context, in, out string, keep []tandem.Token, vocab int, typ string, o Options) (*Result, error) {
	var r *recipe
	if typ != "" {
		var err error
		if r, err = findRecipe(typ); err != nil {
			return nil, err
		}
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
		return nil, tandem.Errorf(op, tandem.Invalid, "%s is a side file: want a model to trim", f.Path())
	}
	if err := refuseTrimmed(f); err != nil {
		return nil, err
	}
	w := gguf.KeysOf(f)
	var m *mix
	if r != nil {
		_, layers, err := layersOf(f)
		if err != nil {
			return nil, err
		}
		m = &mix{recipe: r, layers: layers}
		m.keys(w)
	}
	tensors, err := m.trimmed(f, keep, vocab)
	if err != nil {
		return nil, err
	}
	ids := make([]int32, len(keep))
	for i, t := range keep {
		ids[i] = int32(t)
	}
	w.Set(gguf.OutputIDsKey, ids)
	if err := keepLineage(ctx, f, w); err != nil {
		return nil, err
	}
	return write(ctx, f.Path(), out, w, tensors, o)
}

// trimmed returns the tensors of f with an output matrix of the rows in keep. m is nil if types stay as they are.
func (m *mix) trimmed(f *gguf.File, keep []tandem.Token, vocab int) (all []tensor, err error) {
	for i := range f.Tensors() {
		t := &f.Tensors()[i]
		if t.Name == outputName {
			continue
		}
		to := tensor{name: t.Name, typ: t.Type, shape: t.Shape, bytes: t}
		if m != nil && (t.Name != embedName || isFloat(t.Type)) {
			if to, err = m.restore(f.Path(), t, true); err != nil {
				return nil, err
			}
		}
		all = append(all, to)
	}
	head := f.Tensor(outputName)
	if head == nil {
		head = f.Tensor(embedName)
	}
	if head == nil || len(head.Shape) != 2 || head.Shape[1] != vocab {
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s: want a tensor %q or %q with a row for each of %d tokens", f.Path(), outputName,
			embedName, vocab)
	}
	to, err := m.rowsOf(f.Path(), head, keep)
	return append(all, to), err
}

// rowsOf returns the output matrix of the rows in keep of head, in the type of most matrices: as much as is saved of it, so much faster
// is each pass of the draft.
func (m *mix) rowsOf(path string, head *gguf.Tensor, keep []tandem.Token) (tensor, error) {
	cols := head.Shape[0]
	to := tensor{name: outputName, typ: head.Type, shape: []int{cols, len(keep)}}
	if m != nil {
		to.typ = fallback(m.most, cols)
	}
	block, size := head.Type.Block()
	bytes := cols / block * size
	if to.typ == head.Type {
		to.raw = func(dst []byte, row int) error {
			return eachRun(keep[row:row+len(dst)/bytes], func(at, first, n int) error {
				return head.ReadAt(dst[at*bytes:(at+n)*bytes], int64(first)*int64(bytes))
			})
		}
		return to, nil
	}
	if !decodable(head.Type) {
		return to, tandem.Errorf(op, tandem.Unsupported, "%s: tensor %q is %s, which tandem cannot convert: want it trimmed without --type",
			path, head.Name, head.Type)
	}
	to.fill = func(dst []float32, buf *[]byte, row int) error {
		return eachRun(keep[row:row+len(dst)/cols], func(at, first, n int) error {
			return readRows(head, dst[at*cols:(at+n)*cols], cols, buf, first, n)
		})
	}
	return to, nil
}

// eachRun calls f for each run of ids that follow each other: the index of its first in keep, that id, and how many they are.
func eachRun(keep []tandem.Token, f func(at, first, n int) error) error {
	for at := 0; at < len(keep); {
		n := 1
		for at+n < len(keep) && keep[at+n] == keep[at]+tandem.Token(n) {
			n++
		}
		if err := f(at, int(keep[at]), n); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// refuseTrimmed returns Invalid for a trimmed file.
func refuseTrimmed(f *gguf.File) error {
	if !f.Has(gguf.OutputIDsKey) {
		return nil
	}
	return tandem.Errorf(op, tandem.Invalid, "%s is trimmed already (tandem model trim): want the model that it was made from", f.Path())
}

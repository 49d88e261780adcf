package convert

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/published"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// ImportOptions say what a checkpoint is imported for.
type ImportOptions struct {
	Options
	Kind   side.Kind   // default: told from the names of the tensors
	Taps   []int       // default: what the checkpoint says, or what its kind is usually trained with
	Target side.Target // whose file Target.Path is
	Type   string      // of the matrices, see Types; default f16
}

// Import makes a side file of the checkpoint at in, as published by others (package published), for a target. Copies of the target's
// embedding and output matrices are compared with the target's and left out. Notes say what was decided, for people. Errors: as
// published.Open's and Quantize's; Invalid for a checkpoint whose copies show that it was made for another target.
func Import(ctx context.Context, in, out string, o ImportOptions) (r *Result, notes []string, err error) {
	if o.Type == "" {
		o.Type = "f16"
	}
	rec, err := findRecipe(o.Type)
	if err != nil {
		return nil, nil, err
	}
	if err := checkOut(in, out, o.Force); err != nil {
		return nil, nil, err
	}
	c, err := published.Open(in, published.Options{Kind: o.Kind, Taps: o.Taps, Target: o.Target})
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	if err := ctx.Err(); err != nil {
		return nil, nil, tandem.Errorf(op, tandem.KindOf(err), "stopped: %w", err)
	}
	if err := withoutCopies(c, o.Target.Path); err != nil {
		return nil, nil, err
	}
	m := &mix{recipe: rec, layers: c.Spec.Blocks}
	var tensors []tensor
	taken := map[string]bool{}
	for i := range c.Tensors {
		t := &c.Tensors[i]
		tensors = append(tensors, tensor{name: t.Name, typ: m.typeOfSide(t.Name, t.Shape, gguf.F32), shape: t.Shape, fill: rowsFrom(t)})
		taken[t.Name] = true
	}
	if err := c.Spec.Complete(func(name string) bool { return taken[name] }); err != nil {
		return nil, nil, tandem.Errorf("import", tandem.Invalid, "%s: %w", c.Path(), err)
	}
	w := gguf.NewWriter()
	c.Spec.SetKeys(w)
	name := strings.TrimSuffix(filepath.Base(filepath.Clean(in)), filepath.Ext(in))
	w.Set("general.name", fmt.Sprintf("%.60s, imported", strings.ToValidUTF8(name, "?")))
	m.keys(w)
	r, err = write(ctx, c.Path(), out, w, tensors, o.Options)
	return r, c.Notes, err
}

// rowsFrom returns a function that fills in rows of a checkpoint's tensor, or a whole vector.
func rowsFrom(t *published.Tensor) func([]float32, *[]byte, int) error {
	rowsOf := t.RowsOf
	if rowsOf == nil {
		rowsOf = func(row int) int { return row }
	}
	cols := t.Shape[0]
	return func(dst []float32, buf *[]byte, row int) error {
		if len(t.Shape) == 1 {
			whole := make([]float32, elements(t.From))
			err := readSource(t.From, whole, buf, 0)
			for i := range dst {
				dst[i] = whole[t.Col+rowsOf(i)]
			}
			return err
		}
		whole := make([]float32, columns(t.From))
		for i := range len(dst) / cols {
			if err := readSource(t.From, whole, buf, rowsOf(row+i)); err != nil {
				return err
			}
			copy(dst[i*cols:(i+1)*cols], whole[t.Col:])
		}
		return nil
	}
}

// columns returns the length of a source's rows.
func columns(s published.TensorSource) int {
	switch {
	case s.GGUF != nil:
		return s.GGUF.Shape[0]
	case s.Values != nil:
		return len(s.Values)
	}
	return s.Safetensor.Shape[len(s.Safetensor.Shape)-1]
}

// elements returns how many numbers a source has.
func elements(s published.TensorSource) int {
	switch {
	case s.GGUF != nil:
		return s.GGUF.Elements()
	case s.Values != nil:
		return len(s.Values)
	}
	n := 1
	for _, d := range s.Safetensor.Shape {
		n *= d
	}
	return n
}

// readSource reads a row of a source, or of a source whose rows make one vector, all of them.
func readSource(s published.TensorSource, dst []float32, buf *[]byte, row int) error {
	switch {
	case s.Safetensor != nil:
		return s.Safetensor.Floats(dst, buf, row*len(dst))
	case s.Values != nil:
		copy(dst, s.Values)
		return nil
	}
	if !decodable(s.GGUF.Type) {
		return tandem.Errorf("", tandem.Unsupported, "it is %s, which tandem cannot convert", s.GGUF.Type)
	}
	cols := s.GGUF.Shape[0]
	return readRows(s.GGUF, dst, cols, buf, row*len(dst)/cols, len(dst)/cols)
}

const (
	comparedRows = 256 // of a copy, evenly spread
	mostApart    = 0.5 // difference of a copy's rows, relative to their size, that the target's quantisation may explain
)

// withoutCopies compares the checkpoint's copies of the target's matrices with them. Those that are equal are left out.
func withoutCopies(c *published.Checkpoint, path string) error {
	if len(c.Copies) == 0 {
		return nil
	}
	target, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer target.Close()
	for i := range c.Copies {
		copied := &c.Copies[i]
		of := target.Tensor(copied.Name)
		if of == nil && copied.Name == "output.weight" {
			of = target.Tensor("token_embd.weight") // tied
		}
		if of == nil || !slices.Equal(of.Shape, copied.Shape) || !decodable(of.Type) {
			return tandem.Errorf("import", tandem.Invalid, "%s: tensor %q cannot be compared with the checkpoint's", target.Path(),
				copied.Name)
		}
		apart, err := difference(copied, of)
		switch {
		case err != nil:
			return tandem.Errorf("import", tandem.KindOf(err), "%s: comparing with %q: %w", c.Path(), copied.Name, err)
		case apart <= mostApart:
			c.Notes = append(c.Notes, fmt.Sprintf("the checkpoint's copy of %s equals the target's within %.1f %%: left out", copied.Name,
				100*apart))
		case copied.Own:
			c.Notes = append(c.Notes, fmt.Sprintf("%s differs from the target's by %.0f %%: the side file keeps its own", copied.Name,
				100*apart))
			c.Tensors = append(c.Tensors, copied.Tensor)
		default:
			return tandem.Errorf("import", tandem.Invalid,
				"%s: its copy of %q differs from that of %s by %.0f %%: want the target that it was made for",
				c.Path(), copied.Name, target.Path(), 100*apart)
		}
	}
	return nil
}

// difference returns the root of the mean squared difference between the two matrices, relative to the target's values.
func difference(copied *published.Copy, of *gguf.Tensor) (float64, error) {
	rows, cols := of.Shape[1], of.Shape[0]
	got, want, buf := make([]float32, cols), make([]float32, cols), []byte(nil)
	var apart, size float64
	n := min(rows, comparedRows)
	for i := range n {
		row := i * rows / n
		if err := readSource(copied.From, got, &buf, row); err != nil {
			return 0, err
		}
		if err := readRows(of, want, cols, &buf, row, 1); err != nil {
			return 0, err
		}
		for j := range got {
			e := float64(got[j]) - float64(want[j])
			apart += e * e
			size += float64(want[j]) * float64(want[j])
		}
	}
	if math.IsNaN(apart) || math.IsInf(apart, 0) {
		return 0, tandem.Errorf("", tandem.Corrupt, "a weight is not finite")
	}
	if size == 0 {
		size = 1
	}
	return math.Sqrt(apart / size), nil
}

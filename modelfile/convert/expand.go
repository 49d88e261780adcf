package convert

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// Bounds of a shape: anything beyond them is a typing error.
const (
	maxLayers = 1 << 12
	maxDim    = 1 << 20
)

// Shape is the shape to expand a model to. The head size stays that of the model.
type Shape struct {
	Layers, Dim    int
	Heads, KVHeads int // 0: as many as Dim has room for, in groups as in the model
	FFN            int
	Context        int // context length that the file declares; 0: the model's
}

// ParseShape reads "1b", or LAYERS,D,HEADS,KV,FFN.
func ParseShape(s string) (Shape, error) {
	if s == "1b" {
		return Shape{Layers: 16, Dim: 2048, FFN: 8192}, nil
	}
	var n [5]int
	fields := strings.Split(s, ",")
	for i, f := range fields {
		v, err := strconv.Atoi(strings.TrimSpace(f))
		if len(fields) != len(n) || err != nil || v < 1 || v > maxDim {
			return Shape{}, tandem.Errorf(op, tandem.Invalid, "shape %q: want 1b, or LAYERS,D,HEADS,KV,FFN, each from 1 to %d", s, maxDim)
		}
		n[i] = v
	}
	return Shape{Layers: n[0], Dim: n[1], Heads: n[2], KVHeads: n[3], FFN: n[4]}, nil
}

func (s Shape) String() string {
	return fmt.Sprintf("%d,%d,%d,%d,%d", s.Layers, s.Dim, s.Heads, s.KVHeads, s.FFN)
}

// expansion makes a larger llama model of a smaller one, which computes the same function:
//
//   - The residual stream has D channels, from d on always zero: there the embedding has zero columns, and
//     the matrices that write into the stream (attn_output, ffn_down) have zero rows.
//   - RMS norm divides by √(Σx²/D + ε'), which is √(d/D)·√(Σx²/d + ε) for ε' = ε·d/D; so its weights are
//     multiplied by √(d/D). They are zero from d on.
//   - Additional heads, feed-forward units and layers, which come last, have random weights, so they do real
//     work, but the matrices that would add their results to the residual stream are zero. A
//     query head finds the same key head because groups keep their size and new heads come last.
type expansion struct {
	file    *gguf.File
	old     Shape
	new     Shape
	headDim int
	mix     *mix
	tensors []tensor
	taken   map[string]bool
	err     error
}

// ExpandVersion numbers the output of Expand: programs with the same version write the same file for the same call.
const ExpandVersion = 1

// Expand writes a model of the given shape to out that computes the same function as the one at in; or, if in is a side file, one for
// its target so expanded (planSide). typ is the type to store weights in, see Types; "" keeps f32 and bf16 and makes f16 of the others.
// The same call gives the same file. Errors: as Quantize's; Invalid for an impossible shape, Unsupported for an architecture other than
// llama or a side file's.
func Expand(ctx context.Context, in, out string, shape Shape, typ string, o Options) (*Result, error) {
	if err := checkOut(in, out, o.Force); err != nil {
		return nil, err
	}
	f, err := gguf.Open(in)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	e, w, err := plan(ctx, f, shape, typ)
	if err != nil {
		return nil, err
	}
	return write(ctx, f.Path(), out, w, e.tensors, o)
}

// ExpandedSize returns the bytes of the file that Expand would write. Errors: as Expand's.
func ExpandedSize(ctx context.Context, in string, shape Shape, typ string) (int64, error) {
	f, err := gguf.Open(in)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	e, w, err := plan(ctx, f, shape, typ)
	if err != nil {
		return 0, err
	}
	for _, t := range e.tensors {
		w.TensorFunc(t.name, t.typ, t.shape, nil)
	}
	return w.Size(), nil
}

// plan returns the expanded tensors of f, and the keys of the file to write.
func plan(ctx context.Context, f *gguf.File, shape Shape, typ string) (*expansion, *gguf.Writer, error) {
	if side.Is(f) {
		return planSide(f, shape, typ)
	}
	if err := refuseTrimmed(f); err != nil {
		return nil, nil, err
	}
	e := &expansion{file: f, new: shape, taken: map[string]bool{}}
	if err := e.readShape(); err != nil {
		return nil, nil, err
	}
	if err := e.checkShape(); err != nil {
		return nil, nil, err
	}
	if typ == "" {
		typ = e.keptType()
	}
	r, err := findRecipe(typ)
	if err != nil {
		return nil, nil, err
	}
	e.mix = r.mixOf(f, e.new.Layers)
	if e.collect(); e.err != nil {
		return nil, nil, e.err
	}
	w := gguf.KeysOf(f)
	if err := e.keys(w); err != nil {
		return nil, nil, err
	}
	e.mix.keys(w)
	return e, w, keepLineage(ctx, f, w)
}

// readShape reads the shape of the model.
func (e *expansion) readShape() error {
	arch, layers, err := layersOf(e.file)
	if err != nil {
		return err
	}
	if arch != "llama" {
		return tandem.Errorf(op, tandem.Unsupported, "%s: architecture %q: only llama models are expanded, so that what is trained can be "+
			"measured at a larger model's cost; for the cost alone of another architecture want random weights (model random --like)",
			e.file.Path(), arch)
	}
	e.old.Layers = layers
	for _, k := range []struct {
		to  *int
		key string
		def int
	}{
		{&e.old.Dim, "embedding_length", 0}, {&e.old.FFN, "feed_forward_length", 0}, {&e.old.Heads, "attention.head_count", 0},
	} {
		if *k.to, err = e.file.Int("llama."+k.key, 1, maxDim); err != nil {
			return err
		}
	}
	if e.old.KVHeads, err = e.file.IntOr("llama.attention.head_count_kv", 1, maxDim, e.old.Heads); err != nil {
		return err
	}
	if e.headDim, err = e.file.IntOr("llama.attention.key_length", 1, maxDim, e.old.Dim/e.old.Heads); err != nil {
		return err
	}
	value, err := e.file.IntOr("llama.attention.value_length", 1, maxDim, e.headDim)
	if err != nil {
		return err
	}
	switch {
	case e.headDim == 0 || value != e.headDim:
		return tandem.Errorf(op, tandem.Unsupported, "%s: heads of %d keys and %d values: want equal sizes of at least 1", e.file.Path(),
			e.headDim, value)
	case e.old.Heads%e.old.KVHeads != 0:
		return tandem.Errorf(op, tandem.Corrupt, "%s: %d heads are no multiple of %d key heads", e.file.Path(), e.old.Heads, e.old.KVHeads)
	}
	return nil
}

// checkShape completes the new shape and refuses one that cannot hold the model.
func (e *expansion) checkShape() error {
	old, to := e.old, &e.new
	fail := func(format string, args ...any) error {
		return tandem.Errorf(op, tandem.Invalid, "expanding %s to %s: %w", old, *to, fmt.Errorf(format, args...))
	}
	group := old.Heads / old.KVHeads
	if to.Heads == 0 && to.KVHeads == 0 {
		to.Heads, to.KVHeads = to.Dim/e.headDim, to.Dim/e.headDim/group
	}
	for _, n := range []struct {
		name     string
		was, now int
		most     int
	}{
		{"layers", old.Layers, to.Layers, maxLayers}, {"D", old.Dim, to.Dim, maxDim}, {"heads", old.Heads, to.Heads, maxLayers},
		{"key heads", old.KVHeads, to.KVHeads, maxLayers}, {"FFN", old.FFN, to.FFN, maxDim},
	} {
		if n.now < n.was || n.now > n.most {
			return fail("%d %s: want %d, as the model has, to %d", n.now, n.name, n.was, n.most)
		}
	}
	if to.Heads != to.KVHeads*group {
		return fail("%d heads and %d key heads: want %d heads for a key head, as in the model", to.Heads, to.KVHeads, group)
	}
	if !e.file.Has("llama.attention.key_length") && to.Heads*e.headDim != to.Dim {
		return fail("%d heads of D %d: want a multiple of the model's head size as D, and D/%d heads", to.Heads, to.Dim, e.headDim)
	}
	return nil
}

// keptType returns the type that weights have for typ "".
func (e *expansion) keptType() string {
	if t := e.file.Tensor("token_embd.weight"); t != nil && isFloat(t.Type) {
		return t.Type.String()
	}
	return "f16"
}

// keys writes the new shape.
func (e *expansion) keys(w *gguf.Writer) error {
	const eps = "llama.attention.layer_norm_rms_epsilon"
	v, err := e.file.Float(eps)
	if err != nil {
		return err
	}
	w.Set(eps, float32(v*float64(e.old.Dim)/float64(e.new.Dim)))
	w.Set("llama.block_count", uint32(e.new.Layers))
	w.Set("llama.embedding_length", uint32(e.new.Dim))
	w.Set("llama.feed_forward_length", uint32(e.new.FFN))
	w.Set("llama.attention.head_count", uint32(e.new.Heads))
	w.Set("llama.attention.head_count_kv", uint32(e.new.KVHeads))
	if e.new.Context > 0 {
		w.Set("llama.context_length", uint32(e.new.Context))
	}
	if name, err := e.file.StringOr("general.name", ""); err == nil && name != "" {
		w.Set("general.name", fmt.Sprintf("%s expanded to %s", name, e.new))
	}
	for _, key := range []string{"general.size_label", "general.parameter_count"} {
		w.DropKey(key) // they describe the old size
	}
	return nil
}

package engine_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

func identify(t *testing.T, path string, o engine.Options) engine.Names {
	t.Helper()
	n, err := engine.Identify(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A change to the numbers of a pass changes the part of the identity for it; other changes leave the identity as it is.
func TestIdentity(t *testing.T) {
	base := identify(t, enginetest.Draft, engine.Options{})
	if p, ok := base.Identity.Parts(); !ok || p.Tensors != base.Lineage || p.KV != "f16" || p.Arithmetic != ref.Version {
		t.Errorf("identity %s, lineage %s: want the tensors as lineage, f16 and arithmetic %d", base.Identity, base.Lineage, ref.Version)
	}
	for _, c := range []struct {
		name    string
		options engine.Options
		change  func(*gguf.Writer, *gguf.File)
		want    string // what differs
	}{
		{"nothing", engine.Options{}, func(*gguf.Writer, *gguf.File) {}, ""},
		{"name", engine.Options{}, func(w *gguf.Writer, _ *gguf.File) { w.Set("general.name", "another") }, ""},
		{"template", engine.Options{}, func(w *gguf.Writer, _ *gguf.File) { w.Set("tokenizer.chat_template", "{{ x }}") }, ""},
		{"alignment", engine.Options{}, func(w *gguf.Writer, _ *gguf.File) { w.Set("general.alignment", uint32(256)) }, ""},
		{"less context", engine.Options{Context: 64}, nil, ""},
		{"threads", engine.Options{MaxRows: 7, KVPages: 3}, nil, ""},
		{"order", engine.Options{}, func(w *gguf.Writer, f *gguf.File) { moveFirst(t, w, f) }, ""},
		{"a bit", engine.Options{}, func(w *gguf.Writer, f *gguf.File) { flip(t, w, f, "blk.1.ffn_down.weight") }, "tensors"},
		{"a bit of a norm", engine.Options{}, func(w *gguf.Writer, f *gguf.File) { flip(t, w, f, "output_norm.weight") }, "tensors"},
		{"epsilon", engine.Options{}, func(w *gguf.Writer, _ *gguf.File) {
			w.Set("llama.attention.layer_norm_rms_epsilon", float32(2e-5))
		}, "shape"},
		{"rope base", engine.Options{}, func(w *gguf.Writer, _ *gguf.File) { w.Set("llama.rope.freq_base", float32(20000)) }, "rope"},
		{"rope scaling", engine.Options{}, func(w *gguf.Writer, _ *gguf.File) {
			w.Set("llama.rope.scaling.type", "linear")
			w.Set("llama.rope.scaling.factor", float32(2))
		}, "rope"},
		{"KV type", engine.Options{KVType: "q8_0"}, nil, "KV type"},
	} {
		path := enginetest.Draft
		if c.change != nil {
			path = enginetest.EditedDraft(t, c.change)
		}
		if got := base.Identity.Difference(identify(t, path, c.options).Identity); got != c.want {
			t.Errorf("%s: differs in %q: want %q", c.name, got, c.want)
		}
	}
}

// flip changes one bit of a tensor in the middle.
func flip(t *testing.T, w *gguf.Writer, f *gguf.File, name string) {
	x := f.Tensor(name)
	data := enginetest.BytesOf(t, x)
	data[len(data)/2] ^= 1
	w.Tensor(name, x.Type, x.Shape, data)
}

// moveFirst puts the first tensor last.
func moveFirst(t *testing.T, w *gguf.Writer, f *gguf.File) {
	x := &f.Tensors()[0]
	w.DropTensor(x.Name)
	w.Tensor(x.Name, x.Type, x.Shape, enginetest.BytesOf(t, x))
}

// A loaded model has the identity that Identify returns, whichever way its tensors are read: in leaves, or part by part if
// parts begin within a group of rows.
func TestIdentityOfLoaded(t *testing.T) {
	fused, odd := naive.Tiny("phi3", 2), naive.Tiny("phi3", 2)
	odd.FFN = []int{72, 40} // the second half begins within a group of 16
	for name, n := range map[string]*naive.Model{"llama": naive.Tiny("llama", 2), "fused": fused, "odd": odd} {
		n.HeadDim, n.RopeDim = 32, 32
		n.Generate(1)
		path := n.Write(t, t.TempDir())
		for _, o := range []engine.Options{{KVPages: 2}, {KVPages: 2, KVType: "q8_0"}} {
			if got, want := enginetest.Open(t, path, o).Names(), identify(t, path, o); got != want {
				t.Errorf("%s: loaded as %v, identified as %v", name, got, want)
			}
		}
	}
}

// LongRoPE's factors are chosen by the context that a model is loaded with.
func TestIdentityOfContext(t *testing.T) {
	n := naive.Tiny("phi3", 2).With("rope.scaling.type", "longrope").With("rope.scaling.original_context_length", uint32(128))
	n.Factors = map[string][]float64{"rope_factors_long.weight": {1, 1, 2, 2, 4, 4, 8, 8}, "rope_factors_short.weight": {1, 1, 1, 1, 1, 1,
		1, 2}}
	n.Generate(1)
	path := n.Write(t, t.TempDir())
	long := identify(t, path, engine.Options{}).Identity
	for context, want := range map[int]string{512: "", 129: "", 128: "rope", 16: "rope"} {
		if got := long.Difference(identify(t, path, engine.Options{Context: context}).Identity); got != want {
			t.Errorf("context %d: differs in %q: want %q", context, got, want)
		}
	}
}

// A malformed lineage is refused, by loading and identifying alike, and reading ends with its context.
func TestBadLineage(t *testing.T) {
	for _, v := range []any{"", "short", strings.Repeat("g", 32), uint32(7), strings.Repeat("0", 4096)} {
		path := enginetest.EditedDraft(t, func(w *gguf.Writer, _ *gguf.File) { w.Set(gguf.LineageKey, v) })
		_, err := engine.Identify(t.Context(), path, engine.Options{})
		if tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(err.Error(), gguf.LineageKey) {
			t.Errorf("lineage %.40v: error %v: want one of kind corrupt that names the key", v, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := engine.Identify(ended, enginetest.Draft, engine.Options{}); tandem.KindOf(err) != tandem.Canceled {
		t.Errorf("error %v: want canceled", err)
	}
	cut := filepath.Join(t.TempDir(), "cut.gguf")
	data, err := os.ReadFile(enginetest.Draft)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, data[:len(data)-100], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Identify(t.Context(), cut, engine.Options{}); tandem.KindOf(err) != tandem.Corrupt {
		t.Errorf("error %v: want corrupt", err)
	}
}

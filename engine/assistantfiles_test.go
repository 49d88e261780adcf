package engine_test

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// TestBrokenAssistants: an assistant that does not fit its target is refused by name, and the target is as before.
func TestBrokenAssistants(t *testing.T) {
	const file = enginetest.AssistantFile
	key := func(s string) string { return string(side.Assistant) + "." + s }
	for name, c := range map[string]struct {
		change enginetest.Change
		kind   tandem.Kind
		want   string
	}{
		"other width":      {enginetest.SetKey(key("embedding_length_out"), uint32(256)), tandem.Invalid, "target of width 256"},
		"other vocabulary": {enginetest.SetKey(key("vocab_size"), uint32(100)), tandem.Invalid, "100 tokens"},
		"other heads of full layers": {func(w *gguf.Writer, f *gguf.File) {
			w.Set(key("attention.key_length"), uint32(32))
			w.Set(key("attention.value_length"), uint32(32))
			w.Set(key("rope.dimension_count"), uint32(32))
		}, tandem.Invalid, "heads of 32 elements: the target's have 64"},
		"other rope": {enginetest.SetKey(key("rope.freq_base"), float32(5e5)), tandem.Invalid, "RoPE bases 500000"},
		"layers that do not guess": {enginetest.SetKey(key("nextn_predict_layers"), uint32(2)), tandem.Corrupt,
			"want all layers of an assistant"},
		"no embedding": {enginetest.Both(enginetest.DropKey(key("vocab_size")), enginetest.DropTensor("token_embd.weight")),
			tandem.Corrupt, "vocab_size"},
		"no projection": {enginetest.DropTensor("nextn.pre_projection.weight"), tandem.Corrupt, "nextn.pre_projection.weight"},
		"a tensor too many": {func(w *gguf.Writer, f *gguf.File) {
			x := f.Tensor("output_norm.weight")
			w.Tensor("blk.0.attn_k.weight", x.Type, x.Shape, enginetest.BytesOf(t, x))
		}, tandem.Unsupported, "blk.0.attn_k.weight"},
		"centroids": {enginetest.SetKey(key("use_ordered_embeddings"), true), tandem.Corrupt, `"nextn.centroids.weight" is missing`},
	} {
		t.Run(name, func(t *testing.T) {
			m := enginetest.Open(t, enginetest.GoldenPath(t, enginetest.Gemma4Files[0]), engine.Options{KVPages: 8})
			if err := m.OpenSide(enginetest.ChangedGolden(t, file, c.change)); tandem.KindOf(err) != c.kind ||
				!strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("error %v (kind %v): want kind %v that names %s", err, tandem.KindOf(err), c.kind, c.want)
			}
			if err := m.OpenSide(enginetest.GoldenPath(t, file)); err != nil {
				t.Errorf("the right one afterwards: %v", err)
			}
			if err := m.OpenSide(enginetest.GoldenPath(t, file)); tandem.KindOf(err) != tandem.Invalid {
				t.Errorf("a second one: %v, want Invalid", err)
			}
		})
	}
	m := enginetest.Open(t, enginetest.Target, engine.Options{KVPages: 8})
	if err := m.OpenSide(enginetest.GoldenPath(t, file)); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(fmt.Sprint(err),
		"llama") {
		t.Errorf("beside a llama: %v, want Invalid", err)
	}
	if _, err := engine.Open(enginetest.GoldenPath(t, file), engine.Options{Device: testdevice.CPU(t,
		1)}); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("opened as a model: %v, want Invalid", err)
	}
}

// TestAssistantSpellings: files of older converters give what the one of today gives, with plain and with ordered embeddings.
func TestAssistantSpellings(t *testing.T) {
	g := readAssistantGolden(t)
	ordered := enginetest.ChangedGolden(t, enginetest.AssistantFile, enginetest.NewOrdering(48, 1536).Ordered(t, 5))
	for _, base := range []string{enginetest.GoldenPath(t, enginetest.AssistantFile), ordered} {
		want := stepAll(t, g, base, engine.Options{Device: testdevice.CPU(t, 1)})
		for arch := range assistantNames {
			got := stepAll(t, g, enginetest.ChangedFile(t, base, spelled(t, arch)), engine.Options{Device: testdevice.CPU(t, 1)})
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: something else", arch)
			}
		}
	}
}

// assistantNames are what files of one architecture call the target's width, and two matrices.
var assistantNames = map[string]struct{ width, enter, leave string }{
	"gemma4-assistant": {"embedding_length_out", "nextn.pre_projection.weight", "nextn.post_projection.weight"},
	"gemma4_mtp":       {"backbone_embedding_length", "mtp_pre_proj.weight", "mtp_post_proj.weight"},
	"gemma4_assistant": {"n_embd_backbone", "mtp.pre_projection.weight", "mtp.post_projection.weight"},
}

// spelled renames what an assistant's file of today has as an architecture of other converters does, and leaves the number of tokens out.
func spelled(t *testing.T, arch string) enginetest.Change {
	return func(w *gguf.Writer, f *gguf.File) {
		was, is := assistantNames[string(side.Assistant)], assistantNames[arch]
		for _, k := range f.Keys() {
			rest, ok := strings.CutPrefix(k.Name, string(side.Assistant)+".")
			if !ok {
				continue
			}
			if w.DropKey(k.Name); rest == "vocab_size" {
				continue
			}
			if rest == was.width {
				rest = is.width
			}
			full := arch + "." + rest
			if v, err := f.Bools(k.Name); err == nil {
				w.Set(full, v)
			} else if v, err := f.Bool(k.Name); err == nil {
				w.Set(full, v)
			} else if v, err := f.Int(k.Name, 0, math.MaxInt32); err == nil {
				w.Set(full, uint32(v))
			} else if v, err := f.Float(k.Name); err == nil {
				w.Set(full, float32(v))
			} else {
				w.Set(full, []uint32{1, 1, 1}) // head_count_kv
			}
		}
		w.Set("general.architecture", arch)
		for from, to := range map[string]string{was.enter: is.enter, was.leave: is.leave} {
			x := f.Tensor(from)
			w.DropTensor(from)
			w.Tensor(to, x.Type, x.Shape, enginetest.BytesOf(t, x))
		}
	}
}

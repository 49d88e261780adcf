package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

var gemma4Files = []string{"gemma4", "gemma4-moe"}

// TestGemma4Trees: trees give the bits of plain decoding, with keys and values in both types. Layers differ in heads and head size, some
// read what others keep, and windows are shorter than the text.
func TestGemma4Trees(t *testing.T) {
	for _, name := range gemma4Files {
		for _, kv := range []string{"f16", "q8_0"} {
			m := openTest(t, goldenPath(t, name), Options{Device: testdevice.CPU(t, 2), KVType: kv, KVPages: PagesFor(5, 320, 64)})
			compareTrees(t, m, rand.New(rand.NewPCG(1, 4)), 40)
		}
	}
}

// TestGemma4Devices: every kind of device gives the same bits.
func TestGemma4Devices(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	near := testdevice.CPU(t, 2)
	for _, name := range gemma4Files {
		path := goldenPath(t, name)
		o := Options{KVPages: 24, MaxRows: 64, Device: near}
		m := openTest(t, path, o)
		want := dialogue(t, m, 12)
		devices := map[string]kernels.Device{"gpu": gpu, "definitions": testdevice.Ref(),
			"layers":  fixed{layers.New(layers.Config{Near: near, Far: testdevice.CPU(t, 1)}).With(2)},
			"divided": halves(t, testdevice.CPU(t, 1), testdevice.CPU(t, 1), nil)}
		if name == gemma4Files[0] { // experts are not streamed yet
			from, all := least(t, path, o), m.footprint.Weights
			devices["streamed"] = streaming(t, from+(all-from)/4, t.TempDir())
		}
		for on, d := range devices {
			o.Device = d
			if err := sameBits(dialogue(t, openTest(t, path, o), 12), want); err != nil {
				t.Errorf("%s, %s: %v", name, on, err)
			}
		}
	}
}

// changed writes a copy of a golden model with changes.
func changed(t *testing.T, name string, change func(w *gguf.Writer, f *gguf.File)) string {
	t.Helper()
	return changedFile(t, goldenPath(t, name), change)
}

// changedFile writes a changed copy of a file.
func changedFile(t *testing.T, path string, change func(w *gguf.Writer, f *gguf.File)) string {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := gguf.CopyOf(f)
	change(w, f)
	path = filepath.Join(t.TempDir(), "changed.gguf")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := w.WriteTo(out); err != nil {
		t.Fatal(err)
	}
	return path
}

type change = func(*gguf.Writer, *gguf.File)

func setKey(key string, v any) change { return func(w *gguf.Writer, _ *gguf.File) { w.Set(key, v) } }
func dropKey(key string) change       { return func(w *gguf.Writer, _ *gguf.File) { w.DropKey(key) } }
func dropTensor(name string) change   { return func(w *gguf.Writer, _ *gguf.File) { w.DropTensor(name) } }

// resized gives a tensor another shape of zeros.
func resized(name string, shape ...int) change {
	return func(w *gguf.Writer, f *gguf.File) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x := f.Tensor(name)
		w.Tensor(name, x.Type, shape, make([]byte, n*x.Size()/x.Elements()))
	}
}

// TestBrokenGemma4: keys and tensors that contradict each other are refused by name.
func TestBrokenGemma4(t *testing.T) {
	set := func(key string, v any) change { return setKey("gemma4."+key, v) }
	const dense, moe = "gemma4", "gemma4-moe"
	for name, c := range map[string]struct {
		of     string
		change change
		kind   tandem.Kind
		want   string
	}{
		"table of another width": {dense, resized("per_layer_token_embd.weight", 90, 1536), tandem.Corrupt,
			`"per_layer_token_embd.weight" has shape [90 1536]`},
		"input of another width":  {dense, set("embedding_length_per_layer_input", uint32(32)), tandem.Corrupt, "per_layer"},
		"input of -1":             {dense, set("embedding_length_per_layer_input", int32(-1)), tandem.Corrupt, "per_layer_input"},
		"input too wide":          {dense, set("embedding_length_per_layer_input", uint32(1<<20)), tandem.Corrupt, "per_layer_input"},
		"tensors without the key": {dense, set("embedding_length_per_layer_input", uint32(0)), tandem.Unsupported, "per_layer"},
		"gate of another width":   {dense, resized("blk.1.inp_gate.weight", 128, 8), tandem.Corrupt, "blk.1.inp_gate.weight"},
		"all layers shared":       {dense, set("attention.shared_kv_layers", uint32(6)), tandem.Corrupt, "shared_kv_layers"},
		"more than there are":     {dense, set("attention.shared_kv_layers", uint32(600)), tandem.Corrupt, "shared_kv_layers"},
		"no own layer of a kind":  {dense, set("attention.shared_kv_layers", uint32(4)), tandem.Corrupt, "layer 2, without a window"},
		"own layers without keys": {dense, set("attention.shared_kv_layers", uint32(2)), tandem.Corrupt, "blk.3.attn_k"},
		"other heads of a shared layer": {dense, set("attention.head_count_kv", []uint32{1, 1, 1, 1, 2, 1}), tandem.Corrupt,
			"layer 4 has 2 key-value heads: want the 1 of layer 1"},
		"window 0":          {dense, set("attention.sliding_window", uint32(0)), tandem.Corrupt, "sliding_window"},
		"no window":         {dense, dropKey("gemma4.attention.sliding_window"), tandem.Corrupt, "sliding_window"},
		"no pattern":        {dense, dropKey("gemma4.attention.sliding_window_pattern"), tandem.Corrupt, "sliding_window_pattern"},
		"pattern too short": {dense, set("attention.sliding_window_pattern", []bool{true, false}), tandem.Corrupt, "has 2 elements"},
		"pattern of others": {dense, set("attention.sliding_window_pattern", []bool{true, true, true, true, true, false}),
			tandem.Corrupt, "layer 5, without a window"},
		"widths too few":      {dense, set("feed_forward_length", []uint32{128, 128}), tandem.Corrupt, "feed_forward_length"},
		"head size of a kind": {dense, set("attention.key_length_swa", uint32(16)), tandem.Unsupported, "value length 32"},
		"rope of a kind":      {dense, set("rope.dimension_count_swa", uint32(34)), tandem.Corrupt, "rope dimension count 34"},
		"rope factors":        {dense, resized("rope_freqs.weight", 32), tandem.Corrupt, "rope factor 0 is 0"},
		"no v in a dense one": {dense, dropTensor("blk.0.attn_k.weight"), tandem.Corrupt, "blk.0.attn_k.weight"},
		"soft cap":            {dense, set("final_logit_softcapping", float32(math.NaN())), tandem.Corrupt, "final_logit_softcapping"},
		"experts 0":           {moe, set("expert_count", uint32(0)), tandem.Unsupported, "blk.0."},
		"more used than are":  {moe, set("expert_used_count", uint32(9)), tandem.Corrupt, "expert_used_count"},
		"expert width":        {moe, set("expert_feed_forward_length", uint32(16)), tandem.Corrupt, "ffn_gate_up_exps"},
		"no expert width":     {moe, dropKey("gemma4.expert_feed_forward_length"), tandem.Corrupt, "expert_feed_forward_length"},
		"no factors":          {moe, dropTensor("blk.1.ffn_down_exps.scale"), tandem.Corrupt, "blk.1.ffn_down_exps.scale"},
		"no router norm":      {moe, dropTensor("blk.1.ffn_gate_inp.scale"), tandem.Corrupt, "blk.1.ffn_gate_inp.scale"},
		"heads do not divide": {moe, set("attention.head_count_kv", []uint32{3, 2, 1}), tandem.Corrupt, "layer 0: 4 heads"},
		"kv of other heads":   {moe, set("attention.head_count_kv", []uint32{2, 2, 2}), tandem.Corrupt, "blk.2.attn_k.weight"},
	} {
		t.Run(name, func(t *testing.T) {
			path := changed(t, c.of, c.change)
			_, err := Open(path, Options{Device: testdevice.CPU(t, 1), KVPages: 2})
			_, also := Inspect(path)
			for _, err := range []error{err, also} {
				if tandem.KindOf(err) != c.kind || err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v (kind %v): want kind %v that names %s", err, tandem.KindOf(err), c.kind, c.want)
				}
			}
		})
	}
}

// TestBrokenAssistants: an assistant that does not fit its target is refused by name, and the target is as before.
func TestBrokenAssistants(t *testing.T) {
	const file = assistantFile
	key := func(s string) string { return string(side.Assistant) + "." + s }
	for name, c := range map[string]struct {
		change change
		kind   tandem.Kind
		want   string
	}{
		"other width":      {setKey(key("embedding_length_out"), uint32(256)), tandem.Invalid, "target of width 256"},
		"other vocabulary": {setKey(key("vocab_size"), uint32(100)), tandem.Invalid, "100 tokens"},
		"other heads of full layers": {func(w *gguf.Writer, f *gguf.File) {
			w.Set(key("attention.key_length"), uint32(32))
			w.Set(key("attention.value_length"), uint32(32))
			w.Set(key("rope.dimension_count"), uint32(32))
		}, tandem.Invalid, "heads of 32 elements: the target's have 64"},
		"other rope":               {setKey(key("rope.freq_base"), float32(5e5)), tandem.Invalid, "RoPE bases 500000"},
		"layers that do not guess": {setKey(key("nextn_predict_layers"), uint32(2)), tandem.Corrupt, "want all layers of an assistant"},
		"no embedding":             {both(dropKey(key("vocab_size")), dropTensor("token_embd.weight")), tandem.Corrupt, "vocab_size"},
		"no projection":            {dropTensor("nextn.pre_projection.weight"), tandem.Corrupt, "nextn.pre_projection.weight"},
		"a tensor too many": {func(w *gguf.Writer, f *gguf.File) {
			x := f.Tensor("output_norm.weight")
			w.Tensor("blk.0.attn_k.weight", x.Type, x.Shape, bytesOf(t, x))
		}, tandem.Unsupported, "blk.0.attn_k.weight"},
		"centroids": {setKey(key("use_ordered_embeddings"), true), tandem.Corrupt, `"nextn.centroids.weight" is missing`},
	} {
		t.Run(name, func(t *testing.T) {
			m := openTest(t, goldenPath(t, gemma4Files[0]), Options{KVPages: 8})
			if err := m.OpenSide(changed(t, file, c.change)); tandem.KindOf(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("error %v (kind %v): want kind %v that names %s", err, tandem.KindOf(err), c.kind, c.want)
			}
			if err := m.OpenSide(goldenPath(t, file)); err != nil {
				t.Errorf("the right one afterwards: %v", err)
			}
			if err := m.OpenSide(goldenPath(t, file)); tandem.KindOf(err) != tandem.Invalid {
				t.Errorf("a second one: %v, want Invalid", err)
			}
		})
	}
	m := openTest(t, targetPath, Options{KVPages: 8})
	if err := m.OpenSide(goldenPath(t, file)); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(fmt.Sprint(err), "llama") {
		t.Errorf("beside a llama: %v, want Invalid", err)
	}
	if _, err := Open(goldenPath(t, file), Options{Device: testdevice.CPU(t, 1)}); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("opened as a model: %v, want Invalid", err)
	}
}

// TestAssistantSpellings: files of older converters give what the one of today gives, with plain and with ordered embeddings.
func TestAssistantSpellings(t *testing.T) {
	g := readAssistantGolden(t)
	ordered := changed(t, assistantFile, newOrdering(48, 1536).ordered(t, 5))
	for _, base := range []string{goldenPath(t, assistantFile), ordered} {
		want := stepAll(t, g, base, Options{Device: testdevice.CPU(t, 1)})
		for arch := range assistantNames {
			got := stepAll(t, g, changedFile(t, base, spelled(t, arch)), Options{Device: testdevice.CPU(t, 1)})
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
func spelled(t *testing.T, arch string) change {
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
			w.Tensor(to, x.Type, x.Shape, bytesOf(t, x))
		}
	}
}

package convert

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/test/testkit/family"
	"github.com/tandem-llm/tandem/text/token"
)

// TestMXFP4: every value becomes the nearest one that its block's scale allows, the even code of two that are as near.
func TestMXFP4(t *testing.T) {
	values := [8]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	x, got, block := make([]float32, 32), make([]float32, 32), make([]byte, 17)
	for scale := -20; scale <= 20; scale += 5 {
		for i := range x {
			x[i] = float32(math.Ldexp(float64(int32(mixBits(uint64(scale*32+i)))>>8)/(1<<23)*8, scale))
		}
		x[3], x[4], x[5] = float32(math.Ldexp(7.9, scale)), float32(math.Ldexp(2.5, scale)), float32(math.Ldexp(-0.25, scale))
		if err := encode(gguf.MXFP4, block, x); err != nil {
			t.Fatal(err)
		}
		ref.Dequantize(uint32(gguf.MXFP4), block, got)
		for i, v := range x {
			want, least := 0.0, math.Inf(1)
			for code, m := range values {
				m = math.Ldexp(m, scale)
				if d := math.Abs(math.Abs(float64(v)) - m); d < least || d == least && code%2 == 0 {
					want, least = m, d
				}
			}
			if float64(got[i]) != math.Copysign(want, float64(v)) {
				t.Errorf("2^%d: %g is stored as %g, want %g", scale, v, got[i], math.Copysign(want, float64(v)))
			}
		}
	}
	clear(x)
	if err := encode(gguf.MXFP4, block, x); err != nil || !bytes.Equal(block, make([]byte, 17)) {
		t.Errorf("zeros are stored as %x (%v)", block, err)
	}
}

// TestRandomList: every shape has the keys and tensors of the golden model of that architecture, or of a random one, and no others.
func TestRandomList(t *testing.T) {
	like := map[string][]string{"qwen3-30b-a3b": {"qwen3moe"}, "gpt-oss-20b": {"gpt-oss-mxfp4"}, "granite-4-micro": {"granite"},
		"granite-3b-a800m": {"granitemoe"}, "smollm3-3b": {"smollm3"}, "ministral-3-8b": {"mistral3"}, "glm-4-9b": {"glm4"},
		"phi-4-mini": {"phi3-longrope"}, "glm-4.7-flash": {"deepseek2"}, "qwen35-4b": {"qwen35"}, "qwen35-35b-a3b": {"qwen35moe"},
		"gemma4-e4b": {"gemma4"}, "gemma4-26b-a4b": {"gemma4-moe"}, "qwen2.5-1.5b": {"qwen2"}, "qwen2.5-7b": {"qwen2"},
		"llama-3.1-8b": {"llama3"}, "qwen3-8b": {"qwen3"}}
	for _, m := range models {
		if like[m.name] == nil {
			t.Errorf("%s: no model to compare it with", m.name)
		}
		for _, name := range like[m.name] {
			model := family.Random(name, 1)
			if slices.Contains(family.Goldens(), name) {
				model = family.Golden(name)
			}
			f, err := gguf.Open(model.Write(t, t.TempDir()))
			if err != nil {
				t.Fatal(err)
			}
			b := &random{model: m, all: m.layers, pools: map[poolKey]*pool{}, w: gguf.NewWriter()}
			if err := b.choose(""); err != nil {
				t.Fatal(err)
			}
			b.list()
			have := map[string]tensor{}
			for _, x := range b.tensors {
				have[x.name] = x
			}
			wanted := map[string]bool{}
			for _, x := range f.Tensors() {
				wanted[kindOf(x.Name)] = true
				if x.Name == "output.weight" && m.tied {
					continue
				}
				if !slices.ContainsFunc(b.tensors, func(h tensor) bool {
					return kindOf(h.name) == kindOf(x.Name) && len(h.shape) == len(x.Shape)
				}) {
					t.Errorf("%s has no tensor %s of %d dimensions", m.name, x.Name, len(x.Shape))
				}
				if h, ok := have[x.Name]; ok && (h.typ == gguf.F32) != (x.Type == gguf.F32) && len(h.shape) > 1 {
					t.Errorf("%s: %s is %s, %s in %s", m.name, x.Name, h.typ, x.Type, name)
				}
			}
			for _, x := range b.tensors {
				if !wanted[kindOf(x.name)] && (x.name != "output.weight" || m.tied) {
					t.Errorf("%s has a tensor %s that %s lacks", m.name, x.name, name)
				}
			}
			for _, k := range f.Keys() {
				if strings.HasPrefix(k.Name, "deepseek2.rope.scaling.") {
					continue // GLM-4.7-Flash has none
				}
				if strings.HasPrefix(k.Name, m.arch+".") && !b.w.Has(k.Name) {
					t.Errorf("%s has no key %s", m.name, k.Name)
				}
			}
			f.Close()
		}
	}
}

// kindOf is a tensor's name without its layer.
func kindOf(name string) string {
	if rest, ok := strings.CutPrefix(name, "blk."); ok {
		_, rest, _ = strings.Cut(rest, ".")
		return rest
	}
	return name
}

// TestRandom: the same call gives the same bytes on any number of threads, another seed gives others; the vocabulary is that of the model
// or of another file; what cannot be made is refused by name.
func TestRandom(t *testing.T) {
	at := func(name string) string { return filepath.Join(t.TempDir(), name) }
	s := Scheme{Like: "granite-3b-a800m", Layers: 1, Type: "q4_k_m", Seed: 7, Context: 4096}
	var files [3][]byte
	for i, o := range []Options{{Threads: 1}, {Threads: 3}, {}} {
		s := s
		if i == 2 {
			s.Seed++
		}
		path := at("m.gguf")
		r, err := Random(t.Context(), path, s, o)
		if err != nil {
			t.Fatal(err)
		}
		if files[i], err = os.ReadFile(path); err != nil || int64(len(files[i])) != r.Bytes {
			t.Fatalf("%d bytes, want %d (%v)", len(files[i]), r.Bytes, err)
		}
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := token.FromGGUF(f); err != nil || v.Size() != 49155 {
			t.Errorf("vocabulary: %v", err)
		}
		checkSpread(t, f.Tensor("blk.0.ffn_up_exps.weight"), 1536)
		f.Close()
	}
	if !bytes.Equal(files[0], files[1]) || bytes.Equal(files[0], files[2]) {
		t.Error("one seed gives different files, or two the same one")
	}
	s.Vocab = "../../models/gopher-19m-q8_0.gguf"
	path := at("vocab.gguf")
	if _, err := Random(t.Context(), path, s, Options{}); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	theirs, err := token.Open(s.Vocab)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := token.FromGGUF(f); err != nil || v.Fingerprint() != theirs.Fingerprint() ||
		f.Tensor("token_embd.weight").Shape[1] != theirs.Size() || f.Has("llama.block_count") {
		t.Errorf("another vocabulary than that of %s (%v)", s.Vocab, err)
	}
	for says, s := range map[string]Scheme{
		`shape "gpt-5": want one of qwen3-30b-a3b, gpt-oss-20b`:        {Like: "gpt-5"},
		"33 layers: want 1 to 32, as many as granite-3b-a800m has":     {Like: "granite-3b-a800m", Layers: 33},
		"-1 layers: want 1 to 32":                                      {Like: "granite-3b-a800m", Layers: -1},
		`type "q9": want one of f32, f16`:                              {Like: "granite-3b-a800m", Type: "q9"},
		`"tokenizer.ggml.tokens"`:                                      {Like: "granite-3b-a800m", Vocab: at("none.gguf")},
		"is there already: want another path, or --force":              {Like: "granite-3b-a800m", Layers: 1},
		"are free there: want a place with more room, or a smaller mo": {Like: "qwen3-30b-a3b", Type: "f32"},
	} {
		out := at("x.gguf")
		switch {
		case strings.HasPrefix(says, "is there"):
			out = path
		case strings.HasPrefix(says, "are free"):
			out = smallFolder(t)
		case s.Vocab != "":
			w := gguf.NewWriter()
			w.Set("general.architecture", "llama")
			var b bytes.Buffer
			if _, err := w.WriteTo(&b); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.Vocab, b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if out == "" {
			continue
		}
		_, err := Random(t.Context(), out, s, Options{})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", s, err, says)
		}
	}
}

// smallFolder returns a path on a file system that 120 GB do not fit on; "" if there is none.
func smallFolder(t *testing.T) string {
	t.Helper()
	if free, ok := freeBytes("/dev/shm"); !ok || free > 100<<30 {
		t.Logf("/dev/shm has %d free bytes (%v): a full disk is not tested", free, ok)
		return ""
	}
	return "/dev/shm/tandem-random-test.gguf"
}

// checkSpread compares rows of a matrix with what random weights of variance 1/inputs are.
func checkSpread(t *testing.T, x *gguf.Tensor, inputs int) {
	t.Helper()
	const rows = 64
	values := make([]float32, rows*inputs)
	var buf []byte
	if err := readRows(x, values, inputs, &buf, 0, rows); err != nil {
		t.Fatal(err)
	}
	var sum, squares float64
	for _, v := range values {
		sum, squares = sum+float64(v), squares+float64(v)*float64(v)
	}
	n := float64(len(values))
	if mean, variance := sum/n, squares/n*float64(inputs); math.Abs(mean)*math.Sqrt(float64(inputs)) > 0.02 || math.Abs(variance-1) > 0.05 {
		t.Errorf("mean %g, variance %g of 1/inputs", mean, variance)
	}
	for a := range 8 {
		for b := range a {
			dot := 0.0
			for i := range inputs {
				dot += float64(values[a*inputs+i]) * float64(values[b*inputs+i])
			}
			if math.Abs(dot) > 0.2 {
				t.Errorf("rows %d and %d have the product %g", b, a, dot)
			}
		}
	}
}

// TestRandomRuns: logits of a random model are numbers of moderate size, and rows that differ choose different experts.
func TestRandomRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if _, err := Random(t.Context(), path, Scheme{Like: "granite-3b-a800m", Layers: 2, Context: 4096}, Options{}); err != nil {
		t.Fatal(err)
	}
	all, _ := logits(t, path)
	for i, row := range all {
		sum := 0.0
		for _, v := range row {
			sum += float64(v) * float64(v)
		}
		if size := math.Sqrt(sum / float64(len(row))); !(size > 0.01 && size < 10) {
			t.Fatalf("row %d has logits of mean square %g", i, size)
		}
	}
	m, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 0), KVPages: engine.PagesFor(1, 64, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	seq, err := m.NewSequence(64, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	for range 2 { // the second time behind others
		prompt := make([]tandem.Token, 16)
		for i := range prompt {
			prompt[i] = tandem.Token(300 + 997*i)
		}
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: prompt, Want: engine.WantAll}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		// 16 draws of 8 of 40 leave 1 of 40 unchosen; rows that all choose alike use 8 of 40.
		if used := out.Experts(); len(used) == 0 || used[len(used)-1] < 2*30 {
			t.Errorf("16 rows use %v experts of 2 layers of 40, want at least 60", used)
		}
	}
}

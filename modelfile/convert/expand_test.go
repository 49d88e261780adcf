package convert

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// In the additional parts, a matrix that reads the residual has no zeros, one that writes it has only
// zeros; threads change nothing.
func TestExpandedWeights(t *testing.T) {
	in := tiny(t, gguf.F16, func(string, int) float32 { return 1.5 }, nil)
	out, again := filepath.Join(t.TempDir(), "a.gguf"), filepath.Join(t.TempDir(), "b.gguf")
	shape := Shape{3, 128, 16, 8, 80, 4096}
	r, err := Expand(t.Context(), in, out, shape, "", Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Expand(t.Context(), in, again, shape, "f16", Options{Threads: 3}); err != nil {
		t.Fatal(err)
	}
	if n, err := ExpandedSize(t.Context(), in, shape, ""); err != nil || n != r.Bytes {
		t.Errorf("foretold %d bytes, %v: want %d", n, err, r.Bytes)
	}
	a, _ := os.ReadFile(out)
	b, _ := os.ReadFile(again)
	if !bytes.Equal(a, b) || int64(len(a)) != r.Bytes {
		t.Errorf("files of %d and %d bytes, equal %v: want equal ones of %d", len(a), len(b), bytes.Equal(a, b), r.Bytes)
	}
	f := open(t, out)
	for i := range f.Tensors() {
		checkExpanded(t, &f.Tensors()[i])
	}
	for key, want := range map[string]string{"llama.block_count": "3", "llama.embedding_length": "128", "llama.attention.head_count": "16",
		"llama.attention.head_count_kv": "8", "llama.feed_forward_length": "80", "llama.context_length": "4096",
		"llama.attention.layer_norm_rms_epsilon": "2.5e-06",
		"general.file_type":                      "1", "general.name": `"tiny expanded to 3,128,16,8,80"`} {
		if got := f.Describe(key); got != want {
			t.Errorf("%s is %s: want %s", key, got, want)
		}
	}
}

func checkExpanded(t *testing.T, s *gguf.Tensor) {
	t.Helper()
	rows, cols := 1, s.Shape[0]
	if len(s.Shape) == 2 {
		rows = s.Shape[1]
	}
	x, buf := make([]float32, rows*cols), []byte(nil)
	if err := readRows(s, x, cols, &buf, 0, rows); err != nil {
		t.Fatal(err)
	}
	// The model's corner, and how many rows have weights at all.
	wasCols, wasRows, filled := 32, 1, 1
	short := strings.TrimSuffix(s.Name[strings.LastIndex(strings.TrimSuffix(s.Name, ".weight"), ".")+1:], ".weight")
	extra := layerOf(s.Name) >= 2
	switch short {
	case "token_embd":
		wasRows, filled = 48, 48
	case "attn_q", "ffn_gate", "ffn_up", "attn_k", "attn_v":
		wasRows, filled = map[string]int{"attn_q": 32, "ffn_gate": 64, "ffn_up": 64, "attn_k": 16, "attn_v": 16}[short], rows
	case "attn_output":
		wasRows, filled = 32, 32
	case "ffn_down":
		wasCols, wasRows, filled = 64, 32, 32
	}
	if extra && rows > 1 {
		if wasRows = 0; short == "attn_output" || short == "ffn_down" {
			filled = 0
		}
	}
	for i, v := range x {
		r, c := i/cols, i%cols
		norm := rows == 1
		switch {
		case norm && c < wasCols && extra:
			if v != 0.5 {
				t.Fatalf("%s[%d] is %g: want √(32/128)", s.Name, c, v)
			}
		case norm && c < wasCols:
			if v != 0.75 {
				t.Fatalf("%s[%d] is %g: want 1.5 · √(32/128)", s.Name, c, v)
			}
		case r < wasRows && c < wasCols:
			if v != 1.5 {
				t.Fatalf("%s[%d][%d] is %g: want the model's", s.Name, r, c, v)
			}
		case r < wasRows || r >= filled:
			if v != 0 {
				t.Fatalf("%s[%d][%d] is %g: want 0", s.Name, r, c, v)
			}
		case v == 0 || math.Abs(float64(v)) > math.Sqrt(3./32):
			t.Fatalf("%s[%d][%d] is %g: want a random weight, not 0", s.Name, r, c, v)
		}
	}
}

func TestRefusedShapes(t *testing.T) {
	in := tiny(t, gguf.F16, wave, nil)
	out := filepath.Join(t.TempDir(), "out.gguf")
	for _, c := range []struct {
		shape Shape
		says  string
	}{
		{Shape{1, 64, 8, 4, 64, 0}, "expanding 2,32,4,2,64 to 1,64,8,4,64: 1 layers: want 2, as the model has, to 4096"},
		{Shape{5000, 64, 8, 4, 64, 0}, "5000 layers: want 2"},
		{Shape{2, 16, 2, 1, 64, 0}, "16 D: want 32"},
		{Shape{2, 64, 2, 1, 64, 0}, "2 heads: want 4"},
		{Shape{2, 64, 8, 1, 64, 0}, "1 key heads: want 2"},
		{Shape{2, 64, 8, 4, 32, 0}, "32 FFN: want 64"},
		{Shape{2, 64, 8, 8, 64, 0}, "8 heads and 8 key heads: want 2 heads for a key head"},
		{Shape{2, 64, 4, 2, 64, 0}, "4 heads of D 64: want a multiple of the model's head size as D, and D/8 heads"},
		{Shape{2, 68, 0, 0, 64, 0}, "8 heads of D 68: want a multiple"},
	} {
		_, err := Expand(t.Context(), in, out, c.shape, "", Options{})
		refused(t, err, out, tandem.Invalid, c.says)
	}
	if _, err := Expand(t.Context(), in, out, Shape{2, 64, 8, 4, 64, 0}, "q9", Options{}); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("type q9: %v", err)
	}
}

func TestRefusedModels(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.gguf")
	for _, c := range []struct {
		name   string
		change func(*gguf.Writer)
		kind   tandem.Kind
		says   string
	}{
		{"architecture", func(w *gguf.Writer) { w.Set("general.architecture", "gemma"); w.Set("gemma.block_count", uint32(2)) },
			tandem.Unsupported,
			`architecture "gemma": only llama`},
		{"unknown tensor", func(w *gguf.Writer) { w.Tensor("blk.0.ffn_gate_inp.weight", gguf.F32, []int{32}, make([]byte, 128)) },
			tandem.Unsupported,
			`tensor "blk.0.ffn_gate_inp.weight" has no place`},
		{"layer too many", func(w *gguf.Writer) { w.Tensor("blk.2.attn_norm.weight", gguf.F32, []int{32}, make([]byte, 128)) },
			tandem.Unsupported,
			`tensor "blk.2.attn_norm.weight" has no place`},
		{"missing tensor", func(w *gguf.Writer) { w.DropTensor("blk.1.ffn_up.weight") }, tandem.Corrupt,
			`"blk.1.ffn_up.weight" is missing`},
		{"no embedding", func(w *gguf.Writer) { w.DropTensor("token_embd.weight") }, tandem.Corrupt, `"token_embd.weight" is missing`},
		{"turned", func(w *gguf.Writer) { w.Tensor("blk.0.attn_k.weight", gguf.F16, []int{16, 32}, make([]byte, 1024)) }, tandem.Corrupt,
			`"blk.0.attn_k.weight" has shape [16 32]: the hyper-parameters want [32 16]`},
		{"integers", func(w *gguf.Writer) { w.Tensor("blk.0.attn_k.weight", 24, []int{32, 16}, make([]byte, 512)) }, tandem.Unsupported,
			`"blk.0.attn_k.weight" is i8, which tandem cannot convert`},
		{"heads by layer", func(w *gguf.Writer) { w.Set("llama.attention.head_count", []uint32{4, 2}) }, tandem.Corrupt,
			`"llama.attention.head_count" is 2 × u32 [4, 2]`},
		{"no group", func(w *gguf.Writer) { w.Set("llama.attention.head_count_kv", uint32(3)) }, tandem.Corrupt,
			"4 heads are no multiple of 3 key heads"},
		{"value size", func(w *gguf.Writer) { w.Set("llama.attention.value_length", uint32(16)) }, tandem.Unsupported,
			"heads of 8 keys and 16 values"},
		{"no epsilon", func(w *gguf.Writer) { w.DropKey("llama.attention.layer_norm_rms_epsilon") }, tandem.Corrupt, "rms_epsilon"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Expand(t.Context(), tiny(t, gguf.F16, wave, c.change), out, Shape{3, 64, 8, 4, 96, 0}, "", Options{})
			refused(t, err, out, c.kind, c.says)
		})
	}
}

func FuzzParseShape(f *testing.F) {
	for _, s := range []string{"1b", "16,2048,32,8,8192", " 1, 2,3,4,5", "", "1b,", "1,2,3,4", "1,2,3,4,5,6", "0,1,1,1,1", "-1,2,3,4,5",
		"99999999999999999999,1,1,1,1", "1,,3,4,5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		shape, err := ParseShape(s)
		if err != nil {
			if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "want 1b, or LAYERS") {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if shape.Layers < 1 || shape.Dim < 1 || shape.FFN < 1 || s != "1b" && (shape.Heads < 1 || shape.KVHeads < 1) {
			t.Fatalf("%q is %+v", s, shape)
		}
		if again, err := ParseShape(shape.String()); s != "1b" && (err != nil || again != shape) {
			t.Fatalf("%q is %+v, then %+v, %v", s, shape, again, err)
		}
	})
}

// FuzzConvert: whatever the file says, converting it gives a file that can be read, or an error, and no more
// memory or disk than the file's size allows.
func FuzzConvert(f *testing.F) {
	for _, typ := range []gguf.Type{gguf.F16, gguf.Q8_0} {
		data, err := os.ReadFile(tiny(f, typ, wave, nil))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, name := range []string{"ppd-1", "medusa-shared", "eagle"} {
		data, err := os.ReadFile(sides + name + ".gguf")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		in, out := filepath.Join(dir, "in.gguf"), filepath.Join(dir, "out.gguf")
		if err := os.WriteFile(in, data, 0o600); err != nil {
			t.Fatal(err)
		}
		o := Options{Threads: 1, Force: true}
		for _, typ := range []string{"f32", "q4_k_m"} {
			r, err := Quantize(t.Context(), in, out, typ, true, o)
			if err == nil && r.Bytes > 1<<16+64*int64(len(data)) {
				t.Fatalf("%d bytes made of %d", r.Bytes, len(data))
			}
			check(t, out, err)
		}
		_, err := Expand(t.Context(), in, out, Shape{3, 64, 8, 4, 96, 0}, "", o)
		check(t, out, err)
	})
}

func check(t *testing.T, out string, err error) {
	t.Helper()
	if k := tandem.KindOf(err); err != nil && k != tandem.Invalid && k != tandem.Corrupt && k != tandem.Unsupported {
		t.Fatalf("%v of kind %v", err, k)
	}
	if err != nil {
		return
	}
	f, err := gguf.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

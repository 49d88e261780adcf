package convert

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// wide is a shape whose rows have whole blocks of 256.
func wide(name string) *family.Model {
	return family.Make(name, family.Shape{Layers: 3, Dim: 256, Heads: 4, KV: 1, HeadDim: 64, RopeDim: 64, FFN: 256, Experts: 3, Used: 2,
		Width: 256, Window: 8, States: 2, Groups: 1}, 1)
}

// TestQuantizeFamilies stores a model of each architecture, of rows that K-quants fit and of others, in one file and in three: the files
// have the same bytes, what chooses experts and all norms stay f32, and the model runs. That of three files computes what that of one does.
func TestQuantizeFamilies(t *testing.T) {
	dir := t.TempDir()
	prompt := []tandem.Token{1, 50, 200, 31, 90, 12}
	for _, name := range family.Running {
		quantizeFamily(t, wide(name), "q4_k_m", dir, prompt)
		m := family.Random(name, 4)
		for _, typ := range []string{"q8_0", "q3_k_m"} {
			quantizeFamily(t, m, typ, dir, prompt)
		}
		if !slices.Equal(logitsAfterAll(t, m.Write(t, dir), prompt), logitsAfterAll(t, m.Split(t, dir, 3), prompt)) {
			t.Errorf("%s: logits of one file and of three differ", m.Name)
		}
	}
}

func quantizeFamily(t *testing.T, m *family.Model, typ, dir string, prompt []tandem.Token) {
	t.Helper()
	out := filepath.Join(dir, "out.gguf")
	var made [2][]byte
	for i, in := range []string{m.Write(t, dir), m.Split(t, dir, 3)} {
		if _, err := Quantize(t.Context(), in, out, typ, false, Options{Force: true}); err != nil {
			t.Fatalf("%s as %s: %v", m.Name, typ, err)
		}
		var err error
		if made[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(made[0], made[1]) {
		t.Errorf("%s as %s: of three files comes another one than of one", m.Name, typ)
	}
	for _, x := range open(t, out).Tensors() {
		if kept := strings.Contains(x.Name, "norm") || strings.Contains(x.Name, "ffn_gate_inp.") || strings.HasSuffix(x.Name, ".bias") ||
			strings.Contains(x.Name, "sinks"); kept && x.Type != gguf.F32 {
			t.Errorf("%s as %s: %s is %v: want f32", m.Name, typ, x.Name, x.Type)
		}
	}
	for _, x := range logitsAfterAll(t, out, prompt) {
		if x-x != 0 {
			t.Fatalf("%s as %s: a logit is %v", m.Name, typ, x)
		}
	}
}

// TestMixtureOfExperts: of q4_k_m, the first and last layers' expert outputs and values have six bits, and so has the output matrix.
func TestMixtureOfExperts(t *testing.T) {
	for _, c := range []struct {
		name, typ string
		want      map[string]gguf.Type
	}{
		{"qwen3moe", "q4_k_m", map[string]gguf.Type{"output.weight": gguf.Q6_K, "token_embd.weight": gguf.Q4_K,
			"blk.0.ffn_gate_exps.weight": gguf.Q4_K, "blk.0.ffn_up_exps.weight": gguf.Q4_K, "blk.2.ffn_down_exps.weight": gguf.Q6_K,
			"blk.1.ffn_down_exps.weight": gguf.Q4_K, "blk.2.attn_v.weight": gguf.Q6_K, "blk.1.attn_v.weight": gguf.Q4_K,
			"blk.0.attn_q.weight": gguf.Q4_K, "blk.0.ffn_gate_inp.weight": gguf.F32}},
		{"gpt-oss-mxfp4", "q4_k_m", map[string]gguf.Type{"output.weight": gguf.Q6_K, "blk.2.ffn_down_exps.weight": gguf.MXFP4,
			"blk.0.attn_sinks.weight": gguf.F32, "blk.0.ffn_gate_exps.bias": gguf.F32, "blk.2.attn_v.weight": gguf.Q6_K}},
		{"granitemoe", "q2_k", map[string]gguf.Type{"output.weight": gguf.Q6_K, "blk.0.ffn_down_exps.weight": gguf.Q3_K,
			"blk.0.attn_v.weight": gguf.Q4_K, "blk.0.ffn_up_exps.weight": gguf.Q2_K, "blk.0.ffn_gate_inp.weight": gguf.F32}},
	} {
		out := filepath.Join(t.TempDir(), "out.gguf")
		if _, err := Quantize(t.Context(), wide(c.name).Write(t, t.TempDir()), out, c.typ, false, Options{}); err != nil {
			t.Fatal(err)
		}
		f := open(t, out)
		for name, want := range c.want {
			if x := f.Tensor(name); x == nil || x.Type != want {
				t.Errorf("%s as %s: %s is %+v: want %v", c.name, c.typ, name, x, want)
			}
		}
	}
}

// TestTowersStay: what reads pictures or sound is copied, of any type.
func TestTowersStay(t *testing.T) {
	m := family.Random("gemma3", 1)
	m.Add("v.blk.0.attn_q.weight", 64, 64)
	out := filepath.Join(t.TempDir(), "out.gguf")
	if _, err := Quantize(t.Context(), m.Write(t, t.TempDir()), out, "q8_0", false, Options{}); err != nil {
		t.Fatal(err)
	}
	if x := open(t, out).Tensor("v.blk.0.attn_q.weight"); x == nil || x.Type != gguf.F32 {
		t.Errorf("the tower is %+v: want f32", x)
	}
}

func logitsAfterAll(t *testing.T, path string, prompt []tandem.Token) (all []float32) {
	t.Helper()
	logits, _ := logitsAfter(t, path, prompt, 1)
	for _, row := range logits {
		all = append(all, row...)
	}
	return all
}

package convert

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// TestExperts quantises the matrices of experts, which have three dimensions, and leaves routers, biases and MXFP4 as they are.
func TestExperts(t *testing.T) {
	for name, c := range map[string]struct {
		typ  string
		want gguf.Type
	}{"qwen3moe": {"q8_0", gguf.Q8_0}, "gpt-oss": {"q8_0", gguf.Q8_0}, "gpt-oss-mxfp4": {"q8_0", gguf.MXFP4},
		"deepseek2": {"q8_0", gguf.Q8_0}, "deepseek2-kvb": {"q8_0", gguf.Q8_0}} {
		in := family.Golden(name).Write(t, t.TempDir())
		out := filepath.Join(t.TempDir(), "out.gguf")
		if _, err := Quantize(t.Context(), in, out, c.typ, false, Options{}); err != nil {
			t.Fatal(err)
		}
		from, f := open(t, in), open(t, out)
		for _, tensor := range []string{"ffn_gate_exps.weight", "ffn_gate_inp.weight", "ffn_gate_exps.bias"} {
			was, is := from.Tensor("blk.1."+tensor), f.Tensor("blk.1."+tensor)
			want := gguf.F32
			if tensor == "ffn_gate_exps.weight" {
				want = c.want
			} else if was == nil {
				continue
			}
			if is == nil || is.Type != want || !slices.Equal(is.Shape, was.Shape) {
				t.Errorf("%s: %s is %+v: want %v of shape %v", name, tensor, is, want, was.Shape)
			}
		}
		var square, n float64
		prompt := []tandem.Token{1, 50, 700, 31, 900, 12}
		before, _ := logitsAfter(t, in, prompt, 1)
		after, _ := logitsAfter(t, out, prompt, 1)
		for i := range before {
			for j := range before[i] {
				square, n = square+math.Pow(float64(before[i][j]-after[i][j]), 2), n+1
			}
		}
		if rms := math.Sqrt(square / n); !(rms > 0 && rms < 0.6) {
			t.Errorf("%s as %s: logits are %.3f away (r.m.s.)", name, c.typ, rms)
		}
	}
}

package convert

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

const (
	draft = "../../models/gopher-draft-all-f16.gguf" // 2 layers, d 256, 4 heads of 64, 2 key heads, ffn 512
)

// logits returns the logits after each of 48 tokens, then after 16 more, each the likeliest.
func logits(t *testing.T, path string) (all [][]float32, greedy []tandem.Token) {
	t.Helper()
	prompt := make([]tandem.Token, 48)
	for i := range prompt {
		prompt[i] = tandem.Token(1 + 379*i%4000)
	}
	return logitsAfter(t, path, prompt, 16)
}

// logitsAfter returns the logits after each token of a prompt, then after `more` tokens, each the likeliest.
func logitsAfter(t *testing.T, path string, next []tandem.Token, more int) (all [][]float32, greedy []tandem.Token) {
	t.Helper()
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
	for len(greedy) < more {
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: next, Want: engine.WantAll}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		for i := range next {
			all = append(all, append([]float32(nil), out.Logits(i)...))
		}
		next = []tandem.Token{tandem.Token(out.Top(len(next) - 1).IDs[0])}
		greedy = append(greedy, next[0])
	}
	return all, greedy
}

// The expanded model computes the same function: to the bit where √(d/D) and d/D are powers of two, else
// to the rounding of the norms.
func TestSameFunction(t *testing.T) {
	small := filepath.Join(t.TempDir(), "q8_0.gguf")
	if _, err := Quantize(t.Context(), draft, small, "q8_0", false, Options{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, in string
		shape    Shape
		typ      string
		most     float64 // difference of logits
	}{
		{"four times as wide", draft, Shape{3, 1024, 16, 8, 640, 0}, "", 0},
		{"half as wide again, f32", draft, Shape{2, 384, 6, 3, 512, 0}, "f32", 1e-3},
		{"half as wide again", draft, Shape{4, 384, 6, 3, 576, 0}, "f16", 1e-3},
		{"as it is", draft, Shape{2, 256, 4, 2, 512, 0}, "", 0},
		{"quantised", small, Shape{3, 1024, 0, 0, 576, 0}, "q8_0", 0},
		{"rope factors, an output matrix", family.Golden("llama3").Write(t, t.TempDir()), Shape{4, 768, 24, 8, 400, 0}, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "big.gguf")
			if _, err := Expand(t.Context(), c.in, out, c.shape, c.typ, Options{}); err != nil {
				t.Fatal(err)
			}
			want, tokens := logits(t, c.in)
			got, continued := logits(t, out)
			var most float64
			for i := range want {
				for j := range want[i] {
					most = max(most, math.Abs(float64(got[i][j])-float64(want[i][j])))
				}
			}
			if !(most <= c.most) {
				t.Errorf("logits differ by up to %g: want at most %g", most, c.most)
			}
			for i := range tokens {
				if tokens[i] != continued[i] {
					t.Fatalf("greedy token %d is %d: want %d", i, continued[i], tokens[i])
				}
			}
		})
	}
}

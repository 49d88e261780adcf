package convert

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/published/layouttest"
	"github.com/tandem-llm/tandem/modelfile/safetensors/sttest"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// golden is what PyTorch computes with a side file.
type golden struct {
	Tokens []int           `json:"tokens"`
	Rows   []int           `json:"rows"`
	Fed    int             `json:"fed"`
	States [][]float64     `json:"states"`
	Logits json.RawMessage `json:"logits"`
}

func readGolden(t *testing.T, name string) *golden {
	t.Helper()
	text, err := os.ReadFile(sides + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	g := &golden{}
	if err := json.Unmarshal(text, g); err != nil {
		t.Fatal(err)
	}
	return g
}

// computed returns what the reference computes with a side file: its logits, for heads and prompt tokens by row and level, and states.
func computed(t *testing.T, target, path string, g *golden) (logits, states [][]float64) {
	r, d := targetReference{newReference(t, target)}, newReference(t, path)
	_, s := readSide(t, path)
	switch s.Kind {
	case side.Medusa:
		seen := r.states(g.Tokens)
		for _, row := range g.Rows {
			logits = append(logits, r.guesses(d, s, r.tap(seen[row], side.LastNorm))...)
		}
	case side.PPD:
		for _, row := range g.Rows {
			logits = append(logits, r.prompts(d, s, g.Tokens[:row+1])...)
		}
	default:
		states, logits = r.drafts(d, s, g.Tokens, g.Fed)
	}
	return logits, states
}

// apart returns the largest difference; b may be longer, with zeros.
func apart(a, b [][]float64) (most float64) {
	if len(a) != len(b) || len(a) == 0 {
		return math.Inf(1)
	}
	for i := range a {
		for j := range max(len(a[i]), len(b[i])) {
			var x, y float64
			if j < len(a[i]) {
				x = a[i][j]
			}
			if j < len(b[i]) {
				y = b[i][j]
			}
			most = max(most, math.Abs(x-y))
		}
	}
	return most
}

// flat returns rows of logits, by row or by row and level.
func (g *golden) flat(t *testing.T) (all [][]float64) {
	var levels [][][]float64
	if json.Unmarshal(g.Logits, &levels) == nil && len(levels) > 0 {
		return slices.Concat(levels...)
	}
	if err := json.Unmarshal(g.Logits, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// An expanded side file computes with its expanded target what the original does with the original; and the reference that says so
// computes what PyTorch does.
func TestExpandSide(t *testing.T) {
	dir := t.TempDir()
	for _, shape := range []Shape{{5, 128, 0, 0, 256, 0}, {4, 96, 0, 0, 200, 0}} {
		target := filepath.Join(dir, fmt.Sprintf("target-%d.gguf", shape.Dim))
		if _, err := Expand(t.Context(), sides+"target.gguf", target, shape, "f32", Options{}); err != nil {
			t.Fatal(err)
		}
		for _, name := range sideNames {
			t.Run(fmt.Sprintf("%s to %d", name, shape.Dim), func(t *testing.T) {
				big := filepath.Join(t.TempDir(), name+".gguf")
				r, err := Expand(t.Context(), sides+name+".gguf", big, shape, "", Options{})
				if err != nil {
					t.Fatal(err)
				}
				if n, err := ExpandedSize(t.Context(), sides+name+".gguf", shape, ""); err != nil || n != r.Bytes {
					t.Errorf("foretold %d bytes, %v: want %d", n, err, r.Bytes)
				}
				f, s := readSide(t, big)
				if err := s.Fits(big, targetAt(t, target)); err != nil {
					t.Error(err)
				}
				realWork(t, f, s, newReference(t, sides+name+".gguf"))
				g := readGolden(t, name)
				logits, states := computed(t, sides+"target.gguf", sides+name+".gguf", g)
				if a := apart(logits, g.flat(t)); a > 1e-4 {
					t.Errorf("logits differ from PyTorch's by up to %g", a)
				}
				if a := apart(states, g.States); len(g.States) > 0 && a > 1e-4 {
					t.Errorf("states differ from PyTorch's by up to %g", a)
				}
				bigLogits, bigStates := computed(t, target, big, g)
				if a := apart(logits, bigLogits); a > 1e-5 {
					t.Errorf("logits of the expanded file differ by up to %g", a)
				}
				if a := apart(states, bigStates); len(states) > 0 && a > 1e-5 {
					t.Errorf("states of the expanded file differ by up to %g", a)
				}
			})
		}
	}
}

// realWork checks that the additional heads and feed-forward units of an expanded draft have weights, and that what they find is dropped.
func realWork(t *testing.T, f *gguf.File, s *side.Spec, small *reference) {
	t.Helper()
	for _, slot := range s.Slots() {
		x := layouttest.Values(t, f, slot.Name)
		if x == nil || slot.Growth != side.Random {
			continue
		}
		was := small.f.Tensor(slot.Name).Shape[1]
		if was == slot.Shape[1] {
			t.Errorf("%s has %d outputs, as it had", slot.Name, was)
		}
		for i, v := range x[was*slot.Shape[0]:] {
			if v == 0 {
				t.Fatalf("%s: weight %d of additional outputs is 0", slot.Name, i)
			}
		}
	}
}

// A draft of EAGLE-3 of another width than the target keeps its own shape: only fc's inputs grow. The shapes of 1b are the same defaults
// as for a model.
func TestExpandSideShapes(t *testing.T) {
	dir := t.TempDir()
	c := layouttest.Of(t, sides+"eagle3.gguf")
	wide := layouttest.Of(t, sides+"eagle3.gguf")
	for name, x := range c.Tensors { // twice as wide: every matrix and vector of the draft has zeros in the new places
		wide.Set(name, widened(name, x))
	}
	wide.Set("embed_tokens.weight", sttest.F32(make([]float32, 260*64), 260, 64))
	wide.Config["hidden_size"], wide.Config["head_dim"] = 64, 16
	in, _, err := imported(t, wide.Write(t, dir), nil)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out.gguf")
	if _, err := Expand(t.Context(), in, out, Shape{Layers: 16, Dim: 2048, FFN: 8192}, "", Options{}); err != nil {
		t.Fatal(err)
	}
	_, was := readSide(t, in)
	_, s := readSide(t, out)
	if s.Dim != 2048 || s.Draft.Width != 64 || s.Draft.FFN != was.Draft.FFN || s.Draft.Eps != was.Draft.Eps || s.Draft.HeadDim != 16 {
		t.Errorf("%+v: want the draft of %+v", s.Draft, was.Draft)
	}
	shape, err := ParseShape("1b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Expand(t.Context(), sides+"dovetail.gguf", filepath.Join(dir, "1b.gguf"), shape, "f16", Options{}); err != nil {
		t.Fatal(err)
	}
	_, was = readSide(t, sides+"dovetail.gguf")
	f, s := readSide(t, filepath.Join(dir, "1b.gguf"))
	if d := s.Draft; d.Width != 2048 || d.FFN != 8192 || d.Heads*d.HeadDim != 2048 || s.Blocks != was.Blocks ||
		!slices.Equal(s.Taps, was.Taps) {
		t.Errorf("%+v: want d 2048, ffn 8192, the blocks and taps of %+v", s, was)
	}
	if got := f.Describe("general.name"); !strings.Contains(got, "expanded to d 2048") {
		t.Errorf("name %s", got)
	}
}

// widened doubles the width of a draft's tensor.
func widened(name string, x sttest.Tensor) sttest.Tensor {
	rows, cols := 1, 1
	if x.DType != "F32" || name == "fc.bias" {
		return x
	}
	switch {
	case len(x.Shape) == 1 || name == "fc.weight" || strings.Contains(name, "o_proj") || strings.Contains(name, "down_proj"):
		rows = 2
	case strings.Contains(name, "self_attn"), strings.Contains(name, "mlp"), name == "lm_head.weight":
		cols = 2
	}
	shape := slices.Clone(x.Shape)
	shape[0] *= rows
	if len(shape) == 2 {
		shape[1] *= cols
	}
	n := 4
	for _, d := range shape {
		n *= d
	}
	return sttest.Tensor{DType: "F32", Shape: shape, Data: append(slices.Clone(x.Data), make([]byte, n-len(x.Data))...)}
}

func TestRefusedSideShapes(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.gguf")
	for _, c := range []struct {
		name  string
		shape Shape
		says  string
	}{
		{"medusa-own", Shape{3, 16, 0, 0, 64, 0}, "16 D: want 32"},
		{"eagle3", Shape{2, 64, 0, 0, 256, 0}, "2 layers: the side file reads the state after layer 3"},
		{"eagle", Shape{3, 64, 0, 0, 8, 0}, "8 FFN: want"},
		{"eagle", Shape{3, 64, 1, 1, 256, 0}, "1 heads and 1 key heads: want at least"},
		{"eagle", Shape{3, 64, 8, 8, 256, 0}, "heads for a key head"},
		{"eagle", Shape{3, 68, 0, 0, 256, 0}, "want a multiple of the draft's head size"},
	} {
		_, err := Expand(t.Context(), sides+c.name+".gguf", out, c.shape, "", Options{})
		refused(t, err, out, tandem.Invalid, c.says)
	}
}

// Quantising stores matrices as the type, vectors as f32 and prompt embeddings as floats; keys stay.
func TestQuantizeSide(t *testing.T) {
	for _, name := range sideNames {
		for _, typ := range []string{"q8_0", "f16", "q4_k_m"} {
			out := filepath.Join(t.TempDir(), "out.gguf")
			if _, err := Quantize(t.Context(), sides+name+".gguf", out, typ, false, Options{}); err != nil {
				t.Fatal(err)
			}
			f, s := readSide(t, out)
			_, was := readSide(t, sides+name+".gguf")
			if s.Lineage != was.Lineage || s.Vocabulary != was.Vocabulary || f.Has(gguf.LineageKey) {
				t.Errorf("%s as %s: lineage %s, vocabulary %s", name, typ, s.Lineage, s.Vocabulary)
			}
			for i := range f.Tensors() {
				x := &f.Tensors()[i]
				want := map[string]gguf.Type{"q8_0": gguf.Q8_0, "f16": gguf.F16, "q4_k_m": gguf.Q5_0}[typ] // rows are shorter than 256
				switch {
				case len(x.Shape) == 1:
					want = gguf.F32
				case s.Kind == side.PPD && typ != "f16":
					want = gguf.F32
				case x.Name == "output.weight" && typ == "q4_k_m":
					want = gguf.Q8_0
				case typ == "q4_k_m" && (strings.Contains(x.Name, "attn_v.") || strings.Contains(x.Name, "ffn_down")):
					continue // the mixture gives some of them more bits
				}
				if x.Type != want && x.Shape[0]%32 == 0 {
					t.Errorf("%s as %s: %s is %s, want %s", name, typ, x.Name, x.Type, want)
				}
			}
		}
	}
}

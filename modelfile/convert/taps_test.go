package convert

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// draftShapes are drafts of every kind with one, three and four taps, with and without matrices, with all tokens, some of them, and an
// output matrix for these.
func draftShapes() (all []family.DraftShape) {
	for i, kind := range []side.Kind{side.Eagle, side.Dovetail, side.Eagle3} {
		for j, taps := range [][]int{{-1}, {2, 1, 3}, {3, 2, -1, 1}} {
			for k := range 3 {
				s := family.DraftShape{Kind: string(kind), Taps: taps, Bare: (i + j + k) % (len(taps) + 1)}
				if k > 0 || kind == side.Eagle3 {
					s.Tokens, s.Output = 40*k+30, k == 1
				}
				all = append(all, s)
			}
		}
	}
	return all
}

// randomDrafts writes a draft of each shape, in f32, for the tiny target, and returns their paths.
func randomDrafts(t *testing.T) map[string]string {
	t.Helper()
	target, of := family.Read(t, sides+"target.gguf"), targetAt(t, sides+"target.gguf")
	dir, all := t.TempDir(), map[string]string{}
	for i, s := range draftShapes() {
		made := family.Draft(s, target, of.Lineage, of.Vocabulary, uint64(i)).Write(t, dir)
		all[s.String()] = made + ".f32"
		if _, err := Quantize(t.Context(), made, made+".f32", "f32", false, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// fedTokens are what random drafts read: the first rows get the target's states, the others their own.
var fedTokens = &golden{Tokens: []int{1, 40, 90, 7, 41, 200, 13, 259, 3, 77}, Fed: 7}

// The engine computes random drafts as the formulas of docs/sidefiles.md have it, but for the rounding of the cache, which is f16.
func TestRandomDrafts(t *testing.T) {
	for name, path := range randomDrafts(t) {
		want, _ := computed(t, sides+"target.gguf", path, fedTokens)
		got := guessed(t, sides+"target.gguf", path, fedTokens)
		if a := apart(want, got); a > 0.02 {
			t.Errorf("%s: logits differ by up to %g", name, a)
		}
	}
}

// Expanded random drafts compute with the expanded target what the originals do, in the reference and in the engine.
func TestExpandRandomDrafts(t *testing.T) {
	dir := t.TempDir()
	target, shape := filepath.Join(dir, "target.gguf"), Shape{5, 128, 0, 0, 256, 0}
	if _, err := Expand(t.Context(), sides+"target.gguf", target, shape, "f32", Options{}); err != nil {
		t.Fatal(err)
	}
	for name, path := range randomDrafts(t) {
		big := filepath.Join(dir, filepath.Base(path))
		if _, err := Expand(t.Context(), path, big, shape, "f32", Options{Force: true}); err != nil {
			t.Fatal(err)
		}
		f, s := readSide(t, big)
		if err := s.Fits(big, targetAt(t, target)); err != nil {
			t.Error(err)
		}
		realWork(t, f, s, newReference(t, path))
		want, states := computed(t, sides+"target.gguf", path, fedTokens)
		got, after := computed(t, target, big, fedTokens)
		if a, b := apart(want, got), apart(states, after); a > 1e-5 || b > 1e-5 {
			t.Errorf("%s expanded: logits differ by up to %g, states by %g", name, a, b)
		}
		if a := apart(guessed(t, sides+"target.gguf", path, fedTokens), guessed(t, target, big, fedTokens)); a != 0 {
			t.Errorf("%s expanded: guesses differ by up to %g", name, a)
		}
	}
}

// Quantised drafts have matrices of the type, those of taps and the output matrix too, and run.
func TestQuantizeRandomDrafts(t *testing.T) {
	dir := t.TempDir()
	for name, path := range randomDrafts(t) {
		for _, typ := range []string{"q8_0", "q4_k_m"} {
			out := filepath.Join(dir, fmt.Sprint(typ, "-", filepath.Base(path)))
			if _, err := Quantize(t.Context(), path, out, typ, false, Options{Force: true}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			f, _ := readSide(t, out)
			for i := range f.Tensors() {
				if x := &f.Tensors()[i]; len(x.Shape) > 1 && (x.Type == gguf.F16 || x.Type == gguf.F32) {
					t.Errorf("%s as %s: %s is %s", name, typ, x.Name, x.Type)
				}
			}
			want, got := guessed(t, sides+"target.gguf", path, fedTokens), guessed(t, sides+"target.gguf", out, fedTokens)
			if a := apart(want, got); !(a > 0) || a > 3 {
				t.Errorf("%s as %s: logits differ by %g", name, typ, a)
			}
		}
	}
}

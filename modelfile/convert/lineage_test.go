package convert

import (
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// digest returns the digest of a file's tensors and its lineage.
func digest(t *testing.T, path string) (tensors, lineage string) {
	t.Helper()
	f := open(t, path)
	tensors, err := f.NewDigest().Sum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if lineage, err = f.Lineage(tensors); err != nil {
		t.Fatal(err)
	}
	return tensors, lineage
}

// Quantising and expanding, one after the other and in any order, keep the lineage; the tensors are others.
func TestLineage(t *testing.T) {
	dir := t.TempDir()
	source := tiny(t, gguf.F16, wave, nil)
	first, want := digest(t, source)
	if first != want {
		t.Errorf("lineage %s of a file that says nothing: want its digest %s", want, first)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	quantize := func(in, out, typ string) {
		if _, err := Quantize(t.Context(), in, at(out), typ, true, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	expand := func(in, out string) {
		if _, err := Expand(t.Context(), in, at(out), Shape{3, 64, 8, 4, 96, 0}, "", Options{}); err != nil {
			t.Fatal(err)
		}
	}
	quantize(source, "q8.gguf", "q8_0")
	quantize(at("q8.gguf"), "q4.gguf", "q4_0")
	expand(source, "big.gguf")
	quantize(at("big.gguf"), "big-q8.gguf", "q8_0")
	expand(at("q8.gguf"), "q8-big.gguf")
	seen := map[string]string{first: source}
	for _, name := range []string{"q8.gguf", "q4.gguf", "big.gguf", "big-q8.gguf", "q8-big.gguf"} {
		tensors, lineage := digest(t, at(name))
		if lineage != want {
			t.Errorf("%s: lineage %s: want %s", name, lineage, want)
		}
		if twin := seen[tensors]; twin != "" {
			t.Errorf("%s has the tensors of %s", name, twin)
		}
		seen[tensors] = name
	}
	if _, other := digest(t, tiny(t, gguf.F16, func(name string, i int) float32 { return 2 * wave(name, i) }, nil)); other == want {
		t.Error("another model has the same lineage")
	}
}

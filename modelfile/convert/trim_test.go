package convert

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// TestTrim: the output matrix has the rows of the kept tokens, copied or in the new type; all else is as Quantize has it, or as it was.
func TestTrim(t *testing.T) {
	keep := []tandem.Token{0, 1, 2, 7, 8, 100, 4095}
	source, dir := open(t, draft), t.TempDir()
	for _, typ := range []string{"", "q4_0", "q8_0", "f32"} {
		out, whole := filepath.Join(dir, "trimmed"+typ), filepath.Join(dir, "whole"+typ)
		r, err := Trim(t.Context(), draft, out, keep, 4096, typ, Options{})
		if err != nil {
			t.Fatal(err)
		}
		of := source
		if typ != "" {
			if _, err := Quantize(t.Context(), draft, whole, typ, true, Options{}); err != nil {
				t.Fatal(err)
			}
			of = open(t, whole)
		}
		f := open(t, out)
		ids, err := f.OutputIDs(4096)
		if err != nil || len(ids) != len(keep) || r.Bytes != f.Size() {
			t.Errorf("%s: ids %v, %v, %d bytes", typ, ids, err, r.Bytes)
		}
		for i := range f.Tensors() {
			x := &f.Tensors()[i]
			if x.Name == outputName || x.Name == embedName {
				continue
			}
			if was := of.Tensor(x.Name); was == nil || was.Type != x.Type || !slices.Equal(bytesOf(t, was), bytesOf(t, x)) {
				t.Errorf("%s: tensor %s is another", typ, x.Name)
			}
		}
		head, embed := f.Tensor(outputName), f.Tensor(embedName)
		want := source.Tensor(embedName)
		if !slices.Equal(embed.Shape, want.Shape) || head.Type != embed.Type || head.Shape[1] != len(keep) {
			t.Fatalf("%s: embedding %v, head %v of %v", typ, embed.Shape, head.Shape, head.Type)
		}
		n := head.Size() / len(keep)
		for i, id := range keep { // the source's matrix is tied
			if got, want := bytesOf(t, head)[i*n:][:n], bytesOf(t, embed)[int(id)*n:][:n]; !slices.Equal(got, want) {
				t.Errorf("%s: row %d is not that of token %d", typ, i, id)
			}
		}
		if a, b := lineageOf(t, source), lineageOf(t, f); a != b {
			t.Errorf("%s: lineage %s, want %s", typ, b, a)
		}
		for name, err := range map[string]error{
			"trim": func() error {
				_, err := Trim(t.Context(), out, filepath.Join(dir, "no"), keep[:3], 4096, "", Options{})
				return err
			}(),
			"expand": func() error {
				_, err := Expand(t.Context(), out, filepath.Join(dir, "no"), Shape{Layers: 16, Dim: 2048, FFN: 8192}, "", Options{})
				return err
			}(),
		} {
			if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "trimmed already") {
				t.Errorf("%s of a trimmed file: %v", name, err)
			}
		}
		again := filepath.Join(dir, "again"+typ)
		if _, err := Quantize(t.Context(), out, again, "q8_0", true, Options{}); err != nil {
			t.Errorf("quantize: %v", err)
		} else if x := open(t, again).Tensor(outputName); x.Type != gguf.Q8_0 || x.Shape[1] != len(keep) {
			t.Errorf("quantised: %v of %v", x.Shape, x.Type)
		}
	}
}

// TestTrimQuantised: an embedding that is quantised is copied, and the output matrix, which was tied to it, gets the type.
func TestTrimQuantised(t *testing.T) {
	dir, keep := t.TempDir(), []tandem.Token{1, 2, 3}
	eight, four := filepath.Join(dir, "eight"), filepath.Join(dir, "four")
	if _, err := Quantize(t.Context(), draft, eight, "q8_0", false, Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Trim(t.Context(), eight, four, keep, 4096, "q4_0", Options{}); err != nil {
		t.Fatal(err)
	}
	was, f := open(t, eight), open(t, four)
	if a, b := was.Tensor(embedName), f.Tensor(embedName); b.Type != gguf.Q8_0 || !slices.Equal(bytesOf(t, a), bytesOf(t, b)) {
		t.Errorf("the embedding is %v", b.Type)
	}
	for _, name := range []string{outputName, "blk.0.ffn_up.weight"} {
		if x := f.Tensor(name); x.Type != gguf.Q4_0 {
			t.Errorf("%s is %v, want q4_0", name, x.Type)
		}
	}
}

// TestTrimRefuses: what cannot be trimmed is said.
func TestTrimRefuses(t *testing.T) {
	keep, out := []tandem.Token{1, 2}, filepath.Join(t.TempDir(), "out")
	for _, c := range []struct {
		in, typ string
		vocab   int
		kind    tandem.Kind
		says    string
	}{{draft, "q9", 4096, tandem.Invalid, "q9"}, {draft, "", 4095, tandem.Corrupt, "token_embd.weight"},
		{"../../models/gopher-medusa-q8_0.gguf", "", 4096, tandem.Invalid, "side file"}, {"nothing", "", 4096, tandem.Invalid, "nothing"}} {
		if _, err := Trim(t.Context(), c.in, out, keep, c.vocab, c.typ, Options{}); tandem.KindOf(err) != c.kind ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %s: %v, want kind %v that names %s", c.in, c.typ, err, c.kind, c.says)
		}
	}
}

func lineageOf(t *testing.T, f *gguf.File) string {
	t.Helper()
	l, err := f.ReadLineage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

package enginetest

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

const AssistantFile = "gemma4-assistant"

// ordering is an order of the golden assistant's tokens, and centroids that are rows of its embedding, those of tokens `at`.
type ordering struct {
	Tokens []int32
	At     []int32
}

func NewOrdering(count int, vocab int) (o ordering) {
	r := rand.New(rand.NewPCG(7, uint64(count)))
	for _, v := range r.Perm(vocab) {
		o.Tokens = append(o.Tokens, int32(v))
	}
	for _, v := range r.Perm(vocab)[:count] {
		o.At = append(o.At, int32(v))
	}
	return o
}

func Int32s(v []int32) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}

// Ordered gives the golden assistant ordered embeddings, of which a step looks into the best clusters.
func (o ordering) Ordered(t testing.TB, chosen int) Change {
	return func(w *gguf.Writer, f *gguf.File) {
		e := f.Tensor("token_embd.weight")
		all, err := e.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		var rows []byte
		for _, token := range o.At {
			rows = append(rows, all[int(token)*tensors.PerRow(e):][:tensors.PerRow(e)]...)
		}
		w.Set(string(side.Assistant)+".use_ordered_embeddings", true)
		w.Set(string(side.Assistant)+".centroid_top_k", uint32(chosen))
		w.Tensor("nextn.centroids.weight", e.Type, []int{e.Shape[0], len(o.At)}, rows)
		w.Tensor("nextn.token_ordering.weight", gguf.Int32, []int{len(o.Tokens)}, Int32s(o.Tokens))
	}
}

// Both applies one change after the other.
func Both(all ...Change) Change {
	return func(w *gguf.Writer, f *gguf.File) {
		for _, c := range all {
			c(w, f)
		}
	}
}

var Gemma4Files = []string{"gemma4", "gemma4-moe"}

// ChangedGolden writes a copy of a golden model with changes.
func ChangedGolden(t *testing.T, name string, change Change) string {
	t.Helper()
	return ChangedFile(t, GoldenPath(t, name), change)
}

// ChangedFile writes a changed copy of a file.
func ChangedFile(t *testing.T, path string, change Change) string {
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

type Change = func(*gguf.Writer, *gguf.File)

func SetKey(key string, v any) Change { return func(w *gguf.Writer, _ *gguf.File) { w.Set(key, v) } }

func DropKey(key string) Change { return func(w *gguf.Writer, _ *gguf.File) { w.DropKey(key) } }

func DropTensor(name string) Change { return func(w *gguf.Writer, _ *gguf.File) { w.DropTensor(name) } }

// Resized gives a tensor another shape of zeros.
func Resized(name string, shape ...int) Change {
	return func(w *gguf.Writer, f *gguf.File) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x := f.Tensor(name)
		w.Tensor(name, x.Type, shape, make([]byte, n*x.Size()/x.Elements()))
	}
}

func BytesOf(t testing.TB, x *gguf.Tensor) []byte {
	t.Helper()
	b, err := x.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// EditedDraft writes a copy of the shipped draft with changes and returns its path.
func EditedDraft(t *testing.T, change Change) string {
	t.Helper()
	return ChangedFile(t, Draft, change)
}

func RecurrentPath(t testing.TB) string { return GoldenPath(t, "qwen35") }

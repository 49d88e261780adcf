package guess_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// part writes a file with the keys of the model at path and those of its tensors that are wanted.
func part(t *testing.T, path string, wanted func(name string) bool, change func(w *gguf.Writer)) string {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := gguf.CopyOf(f)
	for _, x := range f.Tensors() {
		if !wanted(x.Name) {
			w.DropTensor(x.Name)
		}
	}
	change(w)
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "mtp-m.gguf")
	if err := os.WriteFile(out, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}

// openBeside opens the draft at path for a target.
func openBeside(t *testing.T, path, target string) (*engine.Model, error) {
	t.Helper()
	m, err := engine.OpenDraft(path, target, engine.Options{Device: testdevice.CPU(t, 2)})
	if err == nil {
		t.Cleanup(m.Close)
	}
	return m, err
}

// TestAloneMTP: the layer in a file of its own, with the model's keys and names of tensors, as llama.cpp's converter writes it, gives the
// same bits as inside the model's file: with embedding and output matrix of its own and without, and beside a target that lacks the layer.
func TestAloneMTP(t *testing.T) {
	whole := withMTP(5).Write(t, t.TempDir())
	layer := func(name string) bool { return strings.HasPrefix(name, "blk.4.") }
	same := func(*gguf.Writer) {}
	trunk := part(t, whole, func(name string) bool { return !layer(name) }, func(w *gguf.Writer) {
		w.Set("qwen35.block_count", uint32(4))
		w.Set("qwen35.nextn_predict_layers", uint32(0))
	})
	inside := enginetest.OpenMTP(t, whole, engine.Options{})
	rows := func(m *engine.Model) (all []float32) {
		s := enginetest.NewSeq(t, m, 16, 8)
		states := make([]engine.State, 4)
		for i := range states {
			states[i].Target = make([]float32, 64)
			for k := range states[i].Target {
				states[i].Target[k] = float32(i+k)/64 - .5
			}
		}
		out := enginetest.Forward(t, m, 4, engine.Part{Seq: s, Extend: []tandem.Token{3, 1, 4, 1}, States: states, Want: engine.WantAll})
		for i := range states {
			all = append(append(all, out.Logits(i)...), out.Hidden(0, i)...)
		}
		return all
	}
	want := rows(inside)
	for name, wanted := range map[string]func(name string) bool{
		"with all of llama.cpp's": func(name string) bool { return layer(name) || !strings.HasPrefix(name, "blk.") },
		"with an embedding":       func(name string) bool { return layer(name) || name == "token_embd.weight" },
		"the layer alone":         layer,
	} {
		path := part(t, whole, wanted, same)
		if s, err := engine.SideOf(path); err != nil || s.Kind != side.MTP {
			t.Errorf("%s: %+v, %v: want an mtp draft", name, s, err)
		}
		for _, target := range []string{whole, trunk} {
			m, err := openBeside(t, path, target)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := rows(m); !slices.Equal(got, want) {
				t.Errorf("%s, beside %s: other bits than inside the model's file", name, target)
			}
			if _, err := engine.MeasureDraft(path, target, engine.Options{Device: testdevice.CPU(t, 2)}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for want, bad := range map[string]string{
		"made for a vocabulary":  part(t, whole, layer, func(w *gguf.Writer) { w.Set("tokenizer.ggml.eos_token_id", uint32(3)) }),
		"is missing":             part(t, whole, func(name string) bool { return layer(name) && !strings.Contains(name, "attn_k.") }, same),
		"has no layers":          part(t, whole, layer, func(w *gguf.Writer) { w.Set("qwen35.block_count", uint32(6)) }),
		"nextn_predict_layers\"": part(t, whole, layer, func(w *gguf.Writer) { w.Set("qwen35.nextn_predict_layers", uint32(9)) }),
	} {
		if _, err := openBeside(t, bad, whole); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	if _, err := engine.Inspect(part(t, whole, layer, same)); err == nil {
		t.Error("a layer alone is a model")
	}
}

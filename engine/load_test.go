package engine_test

import (
	"bytes"
	"fmt"
	"io"
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
)

// A file that is cut or overwritten while it is loaded gives an error that names file and tensor.
func TestChangedWhileLoading(t *testing.T) {
	model, err := os.ReadFile(enginetest.Target)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(path string) error{
		"cut":     func(path string) error { return os.Truncate(path, int64(len(model)/2)) },
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"written": func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte{7}, len(model)+1), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model.gguf")
			if err := os.WriteFile(path, model, 0o600); err != nil {
				t.Fatal(err)
			}
			var spoilt error
			steps := 0
			_, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 0), KVPages: 1, Progress: func(int64, int64) {
				if steps++; steps == 1 {
					spoilt = spoil(path)
				}
			}})
			if spoilt != nil {
				t.Fatal(spoilt)
			}
			if tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(err.Error(), path+`: tensor "`) {
				t.Errorf("error %v: want one of kind corrupt that names the file and a tensor", err)
			}
		})
	}
}

// Progress goes up to the whole, in steps of whole chunks.
func TestProgress(t *testing.T) {
	var last, whole int64
	m, err := engine.Open(enginetest.Target, engine.Options{Device: testdevice.CPU(t, 0), KVPages: 1, Progress: func(done, total int64) {
		if done <= last || done > total {
			t.Errorf("%d of %d bytes after %d", done, total, last)
		}
		last, whole = done, total
	}})
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	if last != whole || last == 0 {
		t.Errorf("ended at %d of %d bytes", last, whole)
	}
}

// A model in three files computes the same as in one file.
func TestSplitModel(t *testing.T) {
	whole, err := gguf.Open(enginetest.Draft)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	dir, tensors := t.TempDir(), whole.Tensors()
	var paths []string
	for i := range 3 {
		w := gguf.NewWriter()
		if i == 0 {
			w = gguf.CopyOf(whole)
			for _, x := range tensors {
				w.DropTensor(x.Name)
			}
		}
		w.Set("split.no", uint16(i))
		w.Set("split.count", uint16(3))
		w.Set("split.tensors.count", int32(len(tensors)))
		for j := i; j < len(tensors); j += 3 {
			x := &tensors[j]
			w.TensorFunc(x.Name, x.Type, x.Shape, func(to io.Writer) error { _, err := to.Write(enginetest.BytesOf(t, x)); return err })
		}
		var b bytes.Buffer
		if _, err := w.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("m-%05d-of-00003.gguf", i+1)))
		if err := os.WriteFile(paths[i], b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	logits := func(path string) []float32 {
		m, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 0), KVPages: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		s, err := m.NewSequence(8, 0)
		if err != nil {
			t.Fatal(err)
		}
		out, err := m.Forward([]engine.Part{{Seq: s, Extend: []tandem.Token{1, 2, 3}, Want: engine.WantTail}}, 8)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(out.Top(0).Logits)
	}
	want, name := logits(enginetest.Draft), identify(t, enginetest.Draft, engine.Options{})
	for _, path := range paths[:2] {
		if got := identify(t, path, engine.Options{}); got != name {
			t.Errorf("%s is %v: want %v, as in one file", path, got, name)
		}
		if got := logits(path); !slices.Equal(got, want) {
			t.Errorf("%s: logits %v: want %v", path, got, want)
		}
	}
	info, err := engine.Inspect(paths[2])
	if err != nil || info.Parts != 3 {
		t.Errorf("%+v, %v: want 3 files", info, err)
	}
}

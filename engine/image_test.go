package engine_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/test/testkit"
)

// images is one file of packed weights; refused are the reasons why it was not used.
type images struct {
	path    string
	refused []string
}

func (i *images) Find(*engine.Image) (string, func()) {
	if _, err := os.Stat(i.path); err != nil {
		return "", nil
	}
	return i.path, func() {}
}

func (i *images) Refused(_ *engine.Image, why error) { i.refused = append(i.refused, why.Error()) }

// TestImage: weights read from a file are those that a start packs, bit for bit. A file that is cut, damaged, foreign, or of a model file
// that has changed, is refused with a reason, and the weights are packed again.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	model := filepath.Join(dir, "m.gguf")
	b, err := os.ReadFile("../models/gopher-19m-q8_0.gguf")
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	left := func() {
		testkit.Eventually(t, "the model's file has been left alone", func() bool {
			f, err := gguf.Open(model)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			_, err = f.Stamp()
			return err == nil
		})
	}
	write(model, b)
	left()
	all := &images{path: filepath.Join(dir, "image")}
	on := func(isa cpu.ISA, kept engine.Images) *engine.Model {
		t.Helper()
		m, err := engine.Open(model, engine.Options{Device: testdevice.ISA(t, 2, isa), Context: 64, KVPages: 4, MaxRows: 8, Images: kept})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	open := func() *engine.Model { return on(cpu.Auto, all) }
	first := open()
	want := bytes.Clone(first.Image().Packed())
	if !first.Image().Fresh || len(all.refused) > 0 {
		t.Fatalf("fresh %v, refused %q: want packed weights", first.Image().Fresh, all.refused)
	}
	for _, isa := range cpu.Supported() {
		if !bytes.Equal(on(isa, nil).Image().Packed(), want) {
			t.Errorf("%v packs other bytes: want one file for all instruction sets", isa)
		}
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if err := first.Image().Write(stopped, all.path); !errors.Is(err, context.Canceled) {
		t.Fatalf("a write that was stopped: %v", err)
	}
	check := func(name, says string) {
		t.Helper()
		all.refused = nil
		m := open()
		if !bytes.Equal(m.Image().Packed(), want) || m.Names() != first.Names() {
			t.Errorf("%s: other weights or names", name)
		}
		if says == "" && (m.Image().Fresh || len(all.refused) > 0) {
			t.Errorf("%s: fresh %v, refused %q: want them read", name, m.Image().Fresh, all.refused)
		}
		if says != "" && (!m.Image().Fresh || len(all.refused) != 1 || !strings.Contains(all.refused[0], says)) {
			t.Errorf("%s: fresh %v, refused %q: want %q", name, m.Image().Fresh, all.refused, says)
		}
	}
	check("half written", "too few")
	if err := os.Remove(all.path); err != nil {
		t.Fatal(err)
	}
	if err := first.Image().Write(t.Context(), all.path); err != nil {
		t.Fatal(err)
	}
	check("whole", "")
	kept, err := os.ReadFile(all.path)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(kept)) > first.Image().Bytes() {
		t.Errorf("the file has %d bytes, and was to have %d at most", len(kept), first.Image().Bytes())
	}
	flip := func(at int) []byte { b := bytes.Clone(kept); b[at] ^= 1; return b }
	for _, c := range []struct {
		name, says string
		b          []byte
	}{
		{"a weight", "checksum", flip(len(want) / 2)}, {"description", "description has changed", flip(len(want) + 9)},
		{"the end", "does not end", flip(len(kept) - 1)},
		{"the length", "does not end", flip(len(kept) - len("tandem image 1\n\x00") - 33)},
		{"cut", "too few", kept[:len(want)]},
		{"one byte short", "does not end", kept[:len(kept)-1]},
		{"longer", "does not end", append(bytes.Clone(kept), 0)},
		{"empty", "too few", nil}, {"foreign", "does not end", append(b, b...)},
	} {
		write(all.path, c.b)
		check(c.name, c.says)
	}
	write(all.path, kept)
	check("whole again", "")
	write(model, b)
	left()
	check("another model file", "has changed")
}

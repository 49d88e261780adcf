package engine_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestShared: models have the same packed weights in one memory file, whether the first packs them or copies a kept file, and one that is
// opened later reads nothing. A memory file that is not what it should be is refused with a reason, and the model has weights of its own.
func TestShared(t *testing.T) {
	const model = "../models/gopher-19m-q8_0.gguf"
	kept := &images{path: filepath.Join(t.TempDir(), "image")}
	var refused []string
	memory := func() *engine.Shared {
		f, err := engine.NewShared()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return &engine.Shared{File: f, Refused: func(_ string, why error) { refused = append(refused, why.Error()) }}
	}
	open := func(s *engine.Shared, all engine.Images) *engine.Model {
		t.Helper()
		m, err := engine.Open(model, engine.Options{Device: testdevice.CPU(t, 2), Context: 64, KVPages: 4, MaxRows: 8, Shared: s,
			Images: all})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	alone := open(nil, nil)
	check := func(m *engine.Model, fresh bool, says string) {
		t.Helper()
		if !bytes.Equal(m.Image().Packed(), alone.Image().Packed()) || m.Names() != alone.Names() || m.Image().Fresh != fresh {
			t.Errorf("other weights or names, or fresh is %v", m.Image().Fresh)
		}
		if got := strings.Join(refused, "; "); !strings.Contains(got, says) || says == "" && got != "" {
			t.Errorf("refused %q: want %q", got, says)
		}
		refused = nil
	}
	packed := memory()
	first := open(packed, nil)
	check(first, true, "")
	if !packed.Full() {
		t.Error("the first has not filled the memory")
	}
	if err := first.Image().Write(t.Context(), kept.path); err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(kept.path)
	if err != nil {
		t.Fatal(err)
	}
	again := open(packed, nil)
	first.Close() // the others keep what they have mapped
	check(again, false, "")
	copied := memory()
	if _, err := copied.File.Write(image[:1<<20]); err != nil { // left by a process that died
		t.Fatal(err)
	}
	check(open(copied, kept), false, "")
	if !copied.Full() {
		t.Error("a kept file was not copied")
	}

	for _, c := range []struct {
		says  string
		bytes []byte
		seals int
	}{
		{"seals", nil, unix.F_SEAL_SHRINK},
		{"too few", image[:1<<20], engineSeals},
		{"another size", append([]byte{0}, image...), engineSeals},
		{"description has changed", changed(image, len(alone.Image().Packed())+9), engineSeals},
		{"does not end", append(bytes.Clone(image), 0), engineSeals},
	} {
		s := memory()
		if _, err := s.File.Write(c.bytes); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(s.File.Fd(), unix.F_ADD_SEALS, c.seals); err != nil {
			t.Fatal(err)
		}
		check(open(s, nil), true, c.says)
	}
}

const engineSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL

func changed(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}

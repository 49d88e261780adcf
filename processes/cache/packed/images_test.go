package packed

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestImages: what one start keeps, the next finds; a file that was damaged, or for which there is no room, is told, and a start goes on.
func TestImages(t *testing.T) {
	const limit = 1 << 30
	model, dir, told := filepath.Join(t.TempDir(), "m.gguf"), t.TempDir(), []string(nil)
	b, err := os.ReadFile("../../../models/gopher-19m-q8_0.gguf")
	if err == nil {
		err = os.WriteFile(model, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the model's file has been left alone", func() bool {
		f, err := gguf.Open(model)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		_, err = f.Stamp()
		return err == nil
	})
	kept := func(limit, least int64) Images {
		return Images{Cache: func() (*cache.Cache, error) { return cache.New(dir, limit), nil }, Least: least,
			Say: func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }}
	}
	open := func(p Images) *engine.Image {
		t.Helper()
		m, err := engine.Open(model, engine.Options{Device: testdevice.CPU(t, 2), Context: 64, KVPages: 4, MaxRows: 8, Images: p})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m.Image()
	}
	full := kept(1<<20, 1)
	full.Keep(t.Context(), open(full))
	if len(told) != 1 || !strings.Contains(told[0], "--cache-limit") {
		t.Fatalf("no room: told %q", told)
	}
	told = nil
	kept(limit, 0).Keep(t.Context(), open(full)) // too small by default
	p := kept(limit, 1)
	first := open(p)
	if _, inMemory, _ := cache.Space(dir); inMemory {
		t.Skip("the temporary folder is in memory, where nothing is kept")
	}
	if !first.Fresh {
		t.Fatal("a model below the least size was kept")
	}
	p.Keep(t.Context(), first)
	items, err := cache.New(dir, limit).List()
	if err != nil || len(items) != 1 || items[0].Kind != cache.Packed || open(p).Fresh || len(told) > 0 {
		t.Fatalf("kept %+v, %v, told %q: want one file, which the next start reads", items, err, told)
	}
	if err := os.Truncate(filepath.Join(items[0].Path, items[0].File), 1000); err != nil {
		t.Fatal(err)
	}
	again := open(p)
	if !again.Fresh || len(told) != 1 || !strings.Contains(told[0], "packed again") {
		t.Fatalf("cut: fresh %v, told %q", again.Fresh, told)
	}
	if p.Keep(t.Context(), again); open(p).Fresh {
		t.Error("a damaged file was not replaced")
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	told = nil
	if i := open(p); !i.Fresh || len(told) != 1 {
		t.Errorf("in a folder that others can write to: fresh %v, told %q", i.Fresh, told)
	}
}

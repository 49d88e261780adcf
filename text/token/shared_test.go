package token

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestSharedVocabulary: a file is read once while its vocabulary is in use, and again when it has changed or nobody has it.
func TestSharedVocabulary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	data, err := os.ReadFile("../../models/gopher-draft-py-f16.gguf")
	if err != nil {
		t.Fatal(err)
	}
	put := func() (stamp string) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		testkit.Eventually(t, "times that count", func() bool { stamp, err = f.Stamp(); return err == nil })
		return stamp
	}
	open := func() *Vocab {
		v, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	before := put()
	first := open()
	if open() != first {
		t.Error("an unchanged file was read again")
	}
	after := put()
	if open() == first {
		t.Error("a file that was written again has the vocabulary of before")
	}
	runtime.KeepAlive(first)
	testkit.Eventually(t, "vocabularies that nobody has to go", func() bool {
		runtime.GC()
		_, one := read.Load(before)
		_, other := read.Load(after)
		return !one && !other
	})
}

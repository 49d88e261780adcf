package prompts

import (
	"os"
	"path/filepath"
	"testing"
)

// TestShipped: the prompts that are in the program need no checkout; a file of that name is read in their place.
func TestShipped(t *testing.T) {
	t.Chdir(t.TempDir())
	for path, domains := range map[string]int{Chats: 6, Texts: 3} {
		sets, err := Read(path)
		if err != nil || len(sets) != domains {
			t.Errorf("%s: %d domains, want %d: %v", path, len(sets), domains, err)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(`{"id":"a","domain":"own","prompt":"x"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if sets, err = Read(path); err != nil || sets[0].Name != "own" {
			t.Errorf("%s of the folder: %v, %v", path, sets, err)
		}
	}
	if _, err := Read("other.jsonl"); err == nil {
		t.Error("a file that is not there is read")
	}
}

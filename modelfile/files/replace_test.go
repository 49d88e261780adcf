package files

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReplace: a file is written as a whole and for this user alone, whatever was there; after an error all is as it was.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"a longer text", "short", ""} {
		if err := Replace(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil || string(b) != text {
			t.Errorf("the file has %q, %v: want %q", b, err, text)
		}
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
			t.Errorf("mode %v, %v", st.Mode(), err)
		}
		if err := os.Chmod(path, 0o644); err != nil { // what it was before does not matter
			t.Fatal(err)
		}
	}
	other, link := filepath.Join(dir, "other"), filepath.Join(dir, "link")
	if err := os.WriteFile(other, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	if err := Replace(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(link); err != nil || !st.Mode().IsRegular() {
		t.Errorf("a link is not replaced: %v, %v", st, err)
	}
	if b, err := os.ReadFile(other); err != nil || string(b) != "other" {
		t.Errorf("what a link showed has %q, %v", b, err)
	}

	full := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(full, "within"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(full, []byte("x")); err == nil {
		t.Error("a folder is replaced")
	}
	if err := Replace(filepath.Join(dir, "none", "f"), nil); !os.IsNotExist(err) {
		t.Errorf("in a folder that is not there: %v", err)
	}
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	if len(names) != 4 { // f, folder, link, other
		t.Errorf("left behind: %q", names)
	}
}

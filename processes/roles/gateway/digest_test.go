package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestFileDigest: a stand-in until it is computed, then SHA-256 of the bytes, which the next process finds; a file that is another has
// another, and a folder of others is not believed.
func TestFileDigest(t *testing.T) {
	dir := t.TempDir()
	path, folder := filepath.Join(dir, "model.gguf"), filepath.Join(dir, "cache")
	bytes := make([]byte, 3<<20+7)
	bytes[5] = 1
	write := func() {
		if err := os.WriteFile(path, bytes, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write()
	of := sha256.Sum256(bytes)
	want := hex.EncodeToString(of[:])
	d := newFileDigest(folder, path)
	stand, looks := d.Hex(), 0
	if len(stand) != 64 || stand == want || newFileDigest(folder, path).Hex() != stand {
		t.Errorf("stands in: %q", stand)
	}
	d.compute(t.Context(), func() string {
		if looks++; looks < 3 {
			return "not yet"
		}
		return ""
	})
	if d.Hex() != want || looks != 3 || newFileDigest(folder, path).Hex() != want || newFileDigest("", path).Hex() != stand {
		t.Errorf("computed %q: want %q; kept %q", d.Hex(), want, newFileDigest(folder, path).Hex())
	}
	bytes[5] = 2
	write()
	if err := os.Chtimes(path, time.Now(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got := newFileDigest(folder, path).Hex(); got == want || got == stand {
		t.Errorf("another file has %q", got)
	}
	of = sha256.Sum256(append(append([]byte{}, bytes...), bytes...))
	two := newFileDigest(folder, path, path) // a split model
	if two.compute(t.Context(), func() string { return "" }); two.Hex() != hex.EncodeToString(of[:]) {
		t.Errorf("two files: %q", two.Hex())
	}
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if got := newFileDigest(folder, path, path).Hex(); got == two.Hex() {
		t.Error("a folder in which others write is believed")
	}
}

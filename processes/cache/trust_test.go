package cache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestOpenFolders: nothing is kept, used or made where another user could replace it.
func TestOpenFolders(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	below := filepath.Join(open, "below")
	if err := errors.Join(os.MkdirAll(below, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	r := Request{Kind: Packed, File: "f", From: "x", Make: func(context.Context, string) error {
		t.Error("a file was made")
		return nil
	}}
	var unwritable *Unwritable
	for _, dir := range []string{open, below, filepath.Join(open, "new")} {
		if _, err := New(dir, 1<<30).Get(t.Context(), r); !errors.As(err, &unwritable) {
			t.Errorf("%s: %v: want it refused", dir, err)
		}
		if _, err := os.Stat(filepath.Join(dir, Packed)); err == nil {
			t.Errorf("%s: a folder was made", dir)
		}
	}
	if _, err := Temporary(t.Context(), open, r); !errors.As(err, &unwritable) {
		t.Errorf("temporary: %v: want it refused", err)
	}
}

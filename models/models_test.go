//go:build !nomodels

package models

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"testing"
)

// TestFiles: the program carries the models in this folder, and its files can be read from any offset.
func TestFiles(t *testing.T) {
	entries, err := fs.ReadDir(Files(), ".")
	names := append(append(Experts(), Target, Draft, Plan), Sides()...)
	if err != nil || len(entries) != len(names) || len(names) < 5 {
		t.Fatalf("%d files, %v: want the target and its plan, a draft, three experts and %q, as in Files", len(entries), err, Sides())
	}
	for _, name := range names {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Files().Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		at, ok := f.(io.ReaderAt)
		if !ok {
			t.Fatalf("%s: a %T, which is no io.ReaderAt", name, f)
		}
		got := make([]byte, len(want)/2)
		if n, err := at.ReadAt(got, int64(len(want)-len(got))); n != len(got) || !bytes.Equal(got, want[len(want)-len(got):]) {
			t.Errorf("%s: %d bytes, %v: want the file's second half", name, n, err)
		}
	}
}

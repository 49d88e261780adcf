package gguf

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"testing"
	"testing/fstest"

	"github.com/tandem-llm/tandem"
)

// TestBuiltin: a file that the program carries reads like the same file on disk, and one that it does not carry is refused by name.
func TestBuiltin(t *testing.T) {
	if path, ok := Carries("x.gguf"); ok {
		t.Errorf("a program that carries nothing has %s", path)
	}
	_, err := Open(Builtin + "x")
	wantError(t, err, tandem.Invalid, "builtin:x: this program carries no models")

	data := sample(t)
	Carry(fstest.MapFS{"x.gguf": {Data: data}, "cut.gguf": {Data: data[:len(data)/2]}, "none.gguf": {},
		"x.plan.json": {Data: []byte("{}")}})
	t.Cleanup(func() { Carry(nil) })
	path, ok := Carries("x.gguf")
	if !ok || path != "builtin:x" {
		t.Fatalf("Carries = %q, %v: want builtin:x", path, ok)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	disk, err := Open(save(t, data))
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if f.Path() != path || f.Size() != disk.Size() || !bytes.Equal(bytesOf(t, f.Tensor("a")), bytesOf(t, disk.Tensor("a"))) {
		t.Errorf("%s of %d bytes, want %d, and the same tensors", f.Path(), f.Size(), disk.Size())
	}
	got, err1 := f.NewDigest().Sum(context.Background())
	want, err2 := disk.NewDigest().Sum(context.Background())
	if err1 != nil || err2 != nil || got != want {
		t.Errorf("digest %s, %v: want %s, %v", got, err1, want, err2)
	}
	_, err = Open("builtin:y")
	wantError(t, err, tandem.Invalid, "builtin:y: this program carries builtin:cut, builtin:none, builtin:x: want one of them")
	_, err = Open("builtin:../x")
	wantError(t, err, tandem.Invalid, "want one of them")
	_, err = Open("builtin:cut")
	wantError(t, err, tandem.Corrupt, "builtin:cut")
	_, err = Open("builtin:none")
	wantError(t, err, tandem.Corrupt, "builtin:none is empty")
	if b, err := ReadCarried("x.plan.json"); err != nil || string(b) != "{}" {
		t.Errorf("a carried plan: %q, %v", b, err)
	}
	if _, err := ReadCarried("y.plan.json"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a plan that is not carried: %v", err)
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("builtin:y", data, 0o600); err != nil {
		t.Fatal(err)
	}
	onDisk, err := Open("./builtin:y")
	if err != nil {
		t.Fatalf("a file of such a name on disk: %v", err)
	}
	onDisk.Close()
}

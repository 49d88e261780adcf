package gguf

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// splitSet returns the files of a model in n parts of two tensors each, as change leaves them.
func splitSet(t testing.TB, n int, change func(i int, w *Writer)) [][]byte {
	files := make([][]byte, n)
	for i := range files {
		w := NewWriter()
		if i == 0 {
			w.Set("general.architecture", "llama")
		}
		w.Set("split.no", uint16(i))
		w.Set("split.count", uint16(n))
		w.Set("split.tensors.count", int32(2*n))
		for j := range 2 {
			w.Tensor(fmt.Sprintf("t%d", 2*i+j), F32, []int{4}, bytes.Repeat([]byte{byte(2*i + j)}, 16))
		}
		if change != nil {
			change(i, w)
		}
		files[i] = written(t, w)
	}
	return files
}

// saveSet writes the files of a split model and returns their paths.
func saveSet(t testing.TB, files [][]byte) []string {
	t.Helper()
	dir := t.TempDir()
	paths := make([]string, len(files))
	for i, data := range files {
		paths[i] = filepath.Join(dir, fmt.Sprintf("m-%05d-of-%05d.gguf", i+1, len(files)))
		if data == nil {
			continue
		}
		if err := os.WriteFile(paths[i], data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// Whichever part is named, the whole model is there.
func TestSplit(t *testing.T) {
	files := splitSet(t, 3, nil)
	for _, path := range saveSet(t, files) {
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if arch, err := f.String("general.architecture"); err != nil || arch != "llama" {
			t.Errorf("architecture %q, %v", arch, err)
		}
		if f.Parts() != 3 || len(f.Tensors()) != 6 || f.Has("split.count") || f.Size() != int64(len(files[0])+len(files[1])+len(files[2])) {
			t.Errorf("%d parts, %d tensors, %d bytes, keys %v", f.Parts(), len(f.Tensors()), f.Size(), f.Keys())
		}
		for i := range 6 {
			if x := f.Tensor(fmt.Sprint("t", i)); x == nil || !bytes.Equal(bytesOf(t, x), bytes.Repeat([]byte{byte(i)}, 16)) {
				t.Errorf("tensor t%d = %+v", i, x)
			}
		}
		one, err := Parse(written(t, CopyOf(f)))
		if err != nil || len(one.Tensors()) != 6 || !bytes.Equal(bytesOf(t, one.Tensor("t5")), bytes.Repeat([]byte{5}, 16)) {
			t.Errorf("written as one file: %v", err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := f.parts[2].file.Stat(); err == nil {
			t.Error("a part is still open")
		}
	}
}

func TestBrokenSplits(t *testing.T) {
	missing := splitSet(t, 3, nil)
	missing[1] = nil
	cut := splitSet(t, 3, nil)
	cut[2] = cut[2][:len(cut[2])-17] // of the last tensor, behind which there are 16 bytes of padding
	text := splitSet(t, 2, nil)
	text[1] = []byte("hello, this is a text")
	on := func(part int, key string, v any) [][]byte {
		return splitSet(t, 3, func(i int, w *Writer) {
			if i == part {
				w.Set(key, v)
			}
		})
	}
	for _, c := range []struct {
		name  string
		files [][]byte
		kind  tandem.Kind
		says  []string
	}{
		{"part missing", missing, tandem.Invalid, []string{"file 2 of the 3", "m-00002-of-00003.gguf: no such file"}},
		{"part cut", cut, tandem.Corrupt, []string{"file 3 of the 3", `tensor "t5" ends at byte`}},
		{"part no GGUF", text, tandem.Invalid, []string{"file 2 of the 2", "not a GGUF file"}},
		{"number of another", on(1, "split.no", uint16(2)), tandem.Corrupt,
			[]string{"m-00002-of-00003.gguf says that it is file 3 of 3: want 2 of 3"}},
		{"number beyond the count", on(1, "split.no", uint16(3)), tandem.Corrupt,
			[]string{`key "split.no" is 3 (u16): want an integer from 0 to 2`}},
		{"number of no type", on(2, "split.no", "x"), tandem.Corrupt, []string{`key "split.no" is "x"`}},
		{"other count", on(1, "split.count", uint16(4)), tandem.Corrupt, []string{"file 2 of 4: want 2 of 3"}},
		{"count of one", on(1, "split.count", uint16(1)), tandem.Corrupt, []string{"file 1 of 1: want 2 of 3"}},
		{"tensors of another", on(2, "split.tensors.count", int32(7)), tandem.Corrupt,
			[]string{"m-00003-of-00003.gguf counts 7 tensors in all files: another of the files counts 6"}},
		{"tensors", splitSet(t, 3, func(_ int, w *Writer) { w.Set("split.tensors.count", int32(7)) }), tandem.Corrupt,
			[]string{`"split.tensors.count" is 7: the 3 files hold 6 tensors`}},
		{"tensor twice", splitSet(t, 2, func(i int, w *Writer) { w.Tensor("x", F32, []int{1}, make([]byte, 4)) }), tandem.Corrupt,
			[]string{`tensor "x" is there twice, in`, "m-00002-of-00002.gguf"}},
		{"too many parts", on(0, "split.count", uint16(5000)), tandem.Unsupported,
			[]string{`"split.count" is 5000: want at most 1024 files`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Open(saveSet(t, c.files)[0])
			wantError(t, err, c.kind, c.says...)
		})
	}
	other := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(other, splitSet(t, 3, nil)[1], 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(other)
	wantError(t, err, tandem.Invalid, "is file 2 of a model split into 3", `want one that ends in "-00002-of-00003.gguf"`)
}

// A file that is cut or written to after it was opened gives an error that says so, wherever it is cut;
// one that is replaced by another stays readable as it was.
func TestChangedWhileOpen(t *testing.T) {
	whole := sample(t)
	for cut := 0; cut < len(whole); cut += 7 {
		path := save(t, whole)
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, int64(cut)); err != nil {
			t.Fatal(err)
		}
		for i := range f.Tensors() {
			x := &f.Tensors()[i]
			_, err := x.Bytes()
			wantError(t, err, tandem.Corrupt, path, fmt.Sprintf("tensor %q", x.Name))
		}
		f.Close()
	}
	path := save(t, whole)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Rename(save(t, make([]byte, len(whole))), path); err != nil {
		t.Fatal(err)
	}
	if got := bytesOf(t, f.Tensor("c")); string(got) != "ABCDEFGH" {
		t.Errorf("after a replacement: %q", got)
	}
	path = save(t, whole)
	g, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if err := os.WriteFile(path, append(bytes.Clone(whole), 0), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = g.Tensor("c").Bytes()
	wantError(t, err, tandem.Corrupt, `tensor "c"`, "was written to while it was read")
}

func TestReadAtBounds(t *testing.T) {
	f, err := Parse(sample(t))
	if err != nil {
		t.Fatal(err)
	}
	c := f.Tensor("c")
	part := make([]byte, 3)
	if err := c.ReadAt(part, 5); err != nil || string(part) != "FGH" {
		t.Errorf("read %q, %v", part, err)
	}
	for _, off := range []int64{-1, 6, 8, 1 << 62, -1 << 63} {
		wantError(t, c.ReadAt(part, off), tandem.Invalid, fmt.Sprintf("reading 3 bytes at byte %d of tensor \"c\", which has 8", off))
	}
	closed, err := Open(save(t, sample(t)))
	if err != nil {
		t.Fatal(err)
	}
	x := closed.Tensor("c")
	closed.Close()
	wantError(t, x.ReadAt(part, 0), tandem.Unavailable, "file already closed")
}

// A header longer than the first read, on disk.
func TestLongHeader(t *testing.T) {
	w := NewWriter()
	tokens := strings.Split(strings.Repeat("token ", 300_000), " ")
	w.Set("tokens", tokens)
	w.Tensor("t", F32, []int{2}, []byte("12345678"))
	f, err := Open(save(t, written(t, w)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := f.Strings("tokens"); err != nil || len(got) != len(tokens) || got[299_999] != "token" {
		t.Errorf("%d tokens, %v", len(got), err)
	}
	if string(bytesOf(t, f.Tensor("t"))) != "12345678" {
		t.Error("the tensor is another")
	}
}

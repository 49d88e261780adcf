package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// sample returns a file with every value type and a few tensors.
func sample(t testing.TB) []byte {
	w := NewWriter()
	w.Set("general.architecture", "llama")
	w.Set("u8", uint8(200))
	w.Set("i8", int8(-3))
	w.Set("u16", uint16(60000))
	w.Set("i16", int16(-300))
	w.Set("u32", uint32(4000000000))
	w.Set("i32", int32(-1))
	w.Set("f32", float32(1.5))
	w.Set("bool", true)
	w.Set("u64", uint64(math.MaxUint64))
	w.Set("i64", int64(math.MinInt64))
	w.Set("f64", 0.25)
	w.Set("nan", float32(math.NaN()))
	w.Set("strings", []string{"a", "", "bc\n", "d", "e"})
	w.Set("ints", []int32{1, -2, 3})
	w.Set("floats", []float32{0.5, -1})
	w.Tensor("a", F32, []int{3, 2}, []byte("0123456789abcdefghijklmn"))
	w.Tensor("b", Q8_0, []int{32}, make([]byte, 34))
	w.Tensor("c", F16, []int{1, 1, 2, 2}, []byte("ABCDEFGH"))
	return written(t, w)
}

func written(t testing.TB, w *Writer) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := w.WriteTo(&b)
	if err != nil {
		t.Fatal(err)
	}
	if n != int64(b.Len()) {
		t.Fatalf("WriteTo returned %d, wrote %d", n, b.Len())
	}
	return b.Bytes()
}

func bytesOf(t testing.TB, x *Tensor) []byte {
	t.Helper()
	b, err := x.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func save(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.gguf")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantError checks kind, that the message is one line and that it has all the parts.
func wantError(t *testing.T, err error, k tandem.Kind, parts ...string) {
	t.Helper()
	if !errors.Is(err, k) {
		t.Errorf("error %v of kind %v: want %v", err, tandem.KindOf(err), k)
		return
	}
	if strings.ContainsAny(err.Error(), "\n\r\x00") || len(err.Error()) > 600 {
		t.Errorf("not one clear line: %q", err)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not say %q", err, p)
		}
	}
}

func TestValues(t *testing.T) {
	f, err := Open(save(t, sample(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Version() != 3 || f.Alignment() != 32 || len(f.Keys()) != 16 || len(f.Tensors()) != 3 {
		t.Fatalf("version %d, alignment %d, %d keys, %d tensors", f.Version(), f.Alignment(), len(f.Keys()), len(f.Tensors()))
	}
	same := func(what string, got any, err error, want any) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s = %v, %v: want %v", what, got, err, want)
		}
	}
	s, err := f.String("general.architecture")
	same("String", s, err, "llama")
	for key, want := range map[string]int{"u8": 200, "i8": -3, "u16": 60000, "i16": -300, "u32": 4000000000, "i32": -1,
		"i64": math.MinInt64} {
		n, err := f.Int(key, math.MinInt, math.MaxInt)
		same(key, n, err, want)
	}
	u, err := f.Uint("u64")
	same("u64", u, err, uint64(math.MaxUint64))
	for key, want := range map[string]float64{"f32": 1.5, "f64": 0.25, "i8": -3, "u8": 200} {
		v, err := f.Float(key)
		same(key, v, err, want)
	}
	b, err := f.Bool("bool")
	same("bool", b, err, true)
	ss, err := f.Strings("strings")
	same("strings", ss, err, []string{"a", "", "bc\n", "d", "e"})
	is, err := f.Ints("ints", -2, 3)
	same("ints", is, err, []int{1, -2, 3})
	fs, err := f.Floats("floats")
	same("floats", fs, err, []float32{0.5, -1})
	n, err := f.IntOr("none", 1, 2, 77)
	same("IntOr", n, err, 77)
	s, err = f.StringOr("none", "d")
	same("StringOr", s, err, "d")
	b, err = f.BoolOr("none", true)
	same("BoolOr", b, err, true)
	v, err := f.FloatOr("none", 9)
	same("FloatOr", v, err, 9.0)
	if !f.IsArray("ints") || f.IsArray("u8") || f.IsArray("none") {
		t.Error("IsArray is wrong")
	}
	for key, want := range map[string]string{"general.architecture": `"llama"`, "i8": "-3", "u64": "18446744073709551615", "f32": "1.5",
		"bool": "true", "strings": `5 × string ["a", "", "bc\n", "d", …]`, "floats": "2 × f32 [0.5, -1]", "none": ""} {
		if got := f.Describe(key); got != want {
			t.Errorf("Describe(%q) = %q: want %q", key, got, want)
		}
	}
}

func TestValueErrors(t *testing.T) {
	f, err := Parse(sample(t))
	if err != nil {
		t.Fatal(err)
	}
	check := func(err error, parts ...string) {
		t.Helper()
		wantError(t, err, tandem.Corrupt, parts...)
	}
	_, err = f.String("none")
	check(err, `key "none" is missing`)
	_, err = f.String("u8")
	check(err, `key "u8" is 200 (u8): want a string`)
	_, err = f.Int("i32", 1, 100)
	check(err, `key "i32" is -1 (i32): want an integer from 1 to 100`)
	_, err = f.Int("u64", 1, 100)
	check(err, `key "u64" is 18446744073709551615 (u64): want an integer from 1 to 100`)
	_, err = f.Int("f32", 1, 100)
	check(err, `key "f32" is 1.5 (f32): want an integer`)
	_, err = f.Uint("i64")
	check(err, `-9223372036854775808 (i64): want an integer of 0 or more`)
	_, err = f.Float("nan")
	check(err, `key "nan" is NaN (f32): want a finite number`)
	_, err = f.Float("strings")
	check(err, `(array): want a finite number`)
	_, err = f.Bool("general.architecture")
	check(err, `is "llama" (string): want a bool`)
	_, err = f.Strings("ints")
	check(err, `3 × i32 [1, -2, 3] (array): want an array of strings`)
	_, err = f.Ints("ints", 0, 9)
	check(err, `key "ints" has -2 (i32) as element 1: want an integer from 0 to 9`)
	_, err = f.Floats("ints")
	check(err, "want an array of numbers")
}

func TestTensors(t *testing.T) {
	f, err := Parse(sample(t))
	if err != nil {
		t.Fatal(err)
	}
	a, c := f.Tensor("a"), f.Tensor("c")
	if a == nil || a.Type != F32 || !reflect.DeepEqual(a.Shape, []int{3, 2}) || string(bytesOf(t, a)) != "0123456789abcdefghijklmn" ||
		a.Elements() != 6 {
		t.Errorf("a = %+v", a)
	}
	if c == nil || string(bytesOf(t, c)) != "ABCDEFGH" || c.Elements() != 4 {
		t.Errorf("c = %+v", c)
	}
	if f.Tensor("d") != nil {
		t.Error("there is a tensor d")
	}
}

func TestTypes(t *testing.T) {
	for typ, want := range map[Type]string{F32: "f32", Q4_K: "q4_k", IQ4_XS: "iq4_xs", BF16: "bf16", MXFP4: "mxfp4", 16: "iq2_xxs",
		77: "type 77"} {
		if typ.String() != want {
			t.Errorf("type %d is %q: want %q", uint32(typ), typ, want)
		}
	}
	for typ, want := range map[Type][2]int{F32: {1, 4}, Q4_0: {32, 18}, Q6_K: {256, 210}, IQ4_NL: {32, 18}, IQ4_XS: {256, 136},
		BF16: {1, 2}, MXFP4: {32, 17}, 4: {}, 1 << 31: {}} {
		if e, b := typ.Block(); e != want[0] || b != want[1] {
			t.Errorf("block of %s is %d, %d: want %d", typ, e, b, want)
		}
	}
}

func TestOpenPaths(t *testing.T) {
	dir := t.TempDir()
	none := filepath.Join(dir, "none.gguf")
	_, err := Open(none)
	wantError(t, err, tandem.Invalid, "gguf: "+none+": no such file or directory")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
	_, err = Open(dir)
	wantError(t, err, tandem.Invalid, dir+" is a directory: want a GGUF file")
	_, err = Open("")
	wantError(t, err, tandem.Invalid, "the path is empty")
	_, err = Open("/dev/null")
	wantError(t, err, tandem.Invalid, "/dev/null is not a regular file")
	_, err = Open("a\x00b\nc")
	wantError(t, err, tandem.Invalid)
	_, err = Open(save(t, nil))
	wantError(t, err, tandem.Corrupt, "is empty: want a GGUF file")
	_, err = Open(save(t, []byte("hello, this is a text\n")))
	wantError(t, err, tandem.Invalid, `not a GGUF file: it begins with "hell", want "GGUF"`)
}

func TestClose(t *testing.T) {
	f, err := Open(save(t, sample(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if f.Tensor("a") != nil || f.Has("u8") {
		t.Error("a closed file still has values")
	}
}

// A model cut at every 4 KiB boundary, and everywhere within its header, is refused in one line.
func TestCutShort(t *testing.T) {
	w := NewWriter()
	w.Set("tokenizer.ggml.tokens", strings.Split(strings.Repeat("token ", 4000), " "))
	for i := range 5 {
		w.Tensor(fmt.Sprint("t", i), F32, []int{2048}, make([]byte, 8192))
	}
	whole := written(t, w)
	dir := t.TempDir()
	for n := 0; n < len(whole); n += 4096 {
		path := filepath.Join(dir, "cut.gguf")
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		wantError(t, err, tandem.Corrupt, path)
	}
	model, err := os.ReadFile("../../models/gopher-draft-all-f16.gguf")
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(model); n += 4096 {
		_, err := Parse(model[:n])
		wantError(t, err, tandem.Corrupt)
	}
	small := sample(t)
	for n := range len(small) - 24 {
		if _, err := Parse(small[:n]); tandem.KindOf(err) != tandem.Corrupt && tandem.KindOf(err) != tandem.Invalid {
			t.Fatalf("cut at %d of %d: %v", n, len(small), err)
		}
	}
	_, err = Parse(whole[:len(whole)-1])
	wantError(t, err, tandem.Corrupt, fmt.Sprintf(`tensor "t4" ends at byte %d but the file has %d: the file is cut short or damaged`,
		len(whole), len(whole)-1))
}

func TestShippedModels(t *testing.T) {
	paths, _ := filepath.Glob("../../models/*.gguf")
	if len(paths) < 8 {
		t.Errorf("%d models are shipped: want 8 at least", len(paths))
	}
	for _, p := range paths {
		f, err := Open(p)
		if err != nil {
			t.Error(err)
			continue
		}
		arch, err := f.String("general.architecture")
		if err != nil || arch == "" {
			t.Errorf("%s: architecture %q, %v", p, arch, err)
		}
		if arch == "medusa" || arch == "ppd" || arch == "dovetail" {
			if lineage, err := f.String("tandem.target.lineage"); err != nil || len(lineage) != 32 {
				t.Errorf("%s: lineage %q, %v", p, lineage, err)
			}
		} else if tokens, err := f.Strings("tokenizer.ggml.tokens"); err != nil || len(tokens) < 4096 {
			t.Errorf("%s: %d tokens, %v", p, len(tokens), err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/safetensors/sttest"
)

func wantError(t *testing.T, err error, kind tandem.Kind, says string) {
	t.Helper()
	if tandem.KindOf(err) != kind || err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v of kind %v: want kind %v and one line that says %q", err, tandem.KindOf(err), kind, says)
	}
}

// sample holds one tensor of each kind: matrix, vector, number, and one without elements.
func sample() *sttest.File {
	f := &sttest.File{Metadata: map[string]string{"format": "pt", "ü": "{\"}"}}
	f.Set("m", sttest.F32([]float32{1, 2, 3, 4, 5, -6.5}, 2, 3))
	f.Set("ids", sttest.I64(-7, math.MaxInt64))
	f.Set("half", sttest.Tensor{DType: "F16", Shape: []int{2}, Data: []byte{0x00, 0x3c, 0x00, 0xc0}})
	f.Set("b", sttest.BF16([]float32{1.5, float32(math.Inf(1))}, 2))
	f.Set("none", sttest.Tensor{DType: "F32", Shape: []int{0, 4}})
	f.Set("bools", sttest.Bools(true, false, true))
	f.Set("d", sttest.Tensor{DType: "F64", Data: binary.LittleEndian.AppendUint64(nil,
		math.Float64bits(0.25))}) // after 3 bytes: misaligned
	return f
}

func TestRead(t *testing.T) {
	path := sample().Write(t, filepath.Join(t.TempDir(), "model.safetensors"))
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Metadata()["ü"] != "{\"}" || len(f.Tensors()) != 7 || f.Tensor("x") != nil {
		t.Errorf("metadata %q, %d tensors", f.Metadata(), len(f.Tensors()))
	}
	for name, want := range map[string][]float32{"m": {1, 2, 3, 4, 5, -6.5}, "half": {1, -2}, "b": {1.5, float32(math.Inf(1))}, "none": {},
		"d": {0.25}} {
		x := f.Tensor(name)
		got, buf := make([]float32, x.Elements()), []byte(nil)
		if err := x.Floats(got, &buf, 0); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s is %v, %v: want %v", name, got, err, want)
		}
	}
	m, row, buf := f.Tensor("m"), make([]float32, 3), []byte(nil)
	if err := m.Floats(row, &buf, 3); err != nil || row[0] != 4 || !slices.Equal(m.Shape, []int{2, 3}) || m.Type.String() != "F32" {
		t.Errorf("row 1 of m is %v, %v", row, err)
	}
	for name, want := range map[string][]int64{"ids": {-7, math.MaxInt64}, "bools": {1, 0, 1}} {
		if got, err := f.Tensor(name).Ints(10); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s is %v, %v: want %v", name, got, err, want)
		}
	}
	wantError(t, m.Floats(row, &buf, 4), tandem.Invalid, "elements 4 to 7 of tensor \"m\", which has 6")
	wantError(t, m.Floats(row, &buf, -1), tandem.Invalid, "elements -1 to 2")
	wantError(t, f.Tensor("ids").Floats(row[:2], &buf, 0), tandem.Unsupported, `"ids" is I64: want F64, F32, F16 or BF16`)
	_, err = m.Ints(10)
	wantError(t, err, tandem.Unsupported, `"m" is F32: want I64`)
	_, err = f.Tensor("bools").Ints(2)
	wantError(t, err, tandem.Unsupported, "has 3 elements: want at most 2")
	if err := os.Truncate(path, f.Size()-1); err != nil {
		t.Fatal(err)
	}
	wantError(t, f.Tensor("d").Floats(row[:1], &buf, 0), tandem.Corrupt, "somebody has shortened it")
	wantError(t, m.Floats(row, &buf, 0), tandem.Corrupt, "was written to while it was read")
	if err := errors.Join(f.Close(), f.Close()); err != nil {
		t.Error(err)
	}
}

func TestHostile(t *testing.T) {
	one := func(what string) []byte { return sttest.Raw(`{"w":{`+what+`}}`, make([]byte, 8)) }
	two := func(a, b string) []byte {
		return sttest.Raw(fmt.Sprintf(`{"v":{"dtype":"F32","shape":[2],"data_offsets":[%s]},"w":{"dtype":"F32","shape":[2],"data_offsets":[%s]}}`,
			a, b), make([]byte, 16))
	}
	length := func(n uint64) []byte { return append(binary.LittleEndian.AppendUint64(nil, n), make([]byte, 99)...) }
	for _, c := range []struct {
		name string
		data []byte
		kind tandem.Kind
		says string
	}{
		{"empty", nil, tandem.Corrupt, "has 0 bytes: want a safetensors file, which has at least 10"},
		{"nine bytes", make([]byte, 9), tandem.Corrupt, "has 9 bytes"},
		{"header of 4 GB", length(4 << 30), tandem.Unsupported, "a header of 4294967296 bytes: want at most 100000000"},
		{"header of all bytes", length(math.MaxUint64), tandem.Unsupported, "a header of 18446744073709551615 bytes"},
		{"header beyond the file", length(100), tandem.Corrupt, "a header of 100 bytes, but the file has 99 left"},
		{"header of 1 byte", length(1), tandem.Corrupt, "a header of 1 bytes"},
		{"no object", sttest.Raw("[1,2]", nil), tandem.Corrupt, `begins with "["`},
		{"spaces first", sttest.Raw(" {}", nil), tandem.Corrupt, `begins with " "`},
		{"not UTF-8", sttest.Raw("{\"\xff\":1}", nil), tandem.Corrupt, "not UTF-8"},
		{"cut JSON", sttest.Raw(`{"w":{"dtype":"F32"`, nil), tandem.Corrupt, "no JSON"},
		{"text after it", sttest.Raw(`{} {}`, nil), tandem.Corrupt, "more after the object's end"},
		{"tensor twice",
			sttest.Raw(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}`,
				make([]byte, 16)), tandem.Corrupt, `"w" is there twice`},
		{"metadata twice", sttest.Raw(`{"__metadata__":{},"__metadata__":{}}`, nil), tandem.Corrupt, `"__metadata__" is there twice`},
		{"key twice", one(`"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]`), tandem.Corrupt, `"w" has "shape" twice`},
		{"metadata of a number", sttest.Raw(`{"__metadata__":{"a":1}}`, nil), tandem.Corrupt, `no string for "a"`},
		{"metadata of a list", sttest.Raw(`{"__metadata__":[]}`, nil), tandem.Corrupt, `"__metadata__" is "[": want {`},
		{"no name", sttest.Raw(`{"":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`, make([]byte, 4)), tandem.Corrupt, "empty name"},
		{"a tensor that is a number", sttest.Raw(`{"w":3}`, nil), tandem.Corrupt, `"w" is "3": want {`},
		{"no shape", one(`"dtype":"F32","data_offsets":[0,8]`), tandem.Corrupt, `"w" has 2 of dtype, shape and data_offsets`},
		{"another field", one(`"dtype":"F32","shape":[2],"offsets":[0,8]`), tandem.Unsupported, `"w" has "offsets"`},
		{"unknown type", one(`"dtype":"F7","shape":[2],"data_offsets":[0,8]`), tandem.Unsupported,
			`"w" has dtype "F7": want one of BOOL, U8`},
		{"type of a number", one(`"dtype":32,"shape":[2],"data_offsets":[0,8]`), tandem.Corrupt, "dtype that is no string"},
		{"shape of a number", one(`"dtype":"F32","shape":2,"data_offsets":[0,8]`), tandem.Corrupt, `want [`},
		{"shape in a shape", one(`"dtype":"F32","shape":[[2]],"data_offsets":[0,8]`), tandem.Corrupt, `"[" in its shape`},
		{"shape -1", one(`"dtype":"F32","shape":[-1],"data_offsets":[0,8]`), tandem.Corrupt, `"-1" in its shape`},
		{"shape 2.0", one(`"dtype":"F32","shape":[2.0],"data_offsets":[0,8]`), tandem.Corrupt, `"2.0" in its shape`},
		{"shape 2e0", one(`"dtype":"F32","shape":[2e0],"data_offsets":[0,8]`), tandem.Corrupt, `"2e0" in its shape`},
		{"shape of text", one(`"dtype":"F32","shape":["2"],"data_offsets":[0,8]`), tandem.Corrupt, `"2" in its shape`},
		{"shape of 2^64", one(`"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]`), tandem.Corrupt, "in its shape"},
		{"17 dimensions", one(`"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]`), tandem.Corrupt,
			"more than 16 numbers as its shape"},
		{"product overflows", one(`"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]`), tandem.Corrupt,
			"too large a product"},
		{"product of 2^64 bytes", one(`"dtype":"F32","shape":[4611686018427387903],"data_offsets":[0,8]`), tandem.Corrupt,
			"too large a product"},
		{"product is 0 in between", one(`"dtype":"F32","shape":[0,4611686018427387903,4],"data_offsets":[0,8]`), tandem.Corrupt,
			"has 8 bytes of data: its dtype F32 and shape [0 4611686018427387903 4] want 0"},
		{"three offsets", one(`"dtype":"F32","shape":[2],"data_offsets":[0,8,9]`), tandem.Corrupt, "more than 2 numbers"},
		{"one offset", one(`"dtype":"F32","shape":[2],"data_offsets":[8]`), tandem.Corrupt, "has 1 data_offsets"},
		{"end before begin", one(`"dtype":"F32","shape":[2],"data_offsets":[8,0]`), tandem.Corrupt, "is at bytes 8 to 0 of the data"},
		{"too few bytes", one(`"dtype":"F32","shape":[3],"data_offsets":[0,8]`), tandem.Corrupt,
			"has 8 bytes of data: its dtype F32 and shape [3] want 12"},
		{"out of range", two("0,8", "12,20"), tandem.Corrupt, `"w" is at bytes 12 to 20 of the data, of which the file has 16`},
		{"far out of range", two("0,8", "18446744073709551607,18446744073709551615"), tandem.Corrupt, "is at bytes 18446744073709551607"},
		{"overlap", two("0,8", "4,12"), tandem.Corrupt, `"v" and "w" overlap at byte 4`},
		{"same place", two("0,8", "0,8"), tandem.Corrupt, "overlap at byte 0"},
		{"hole", two("0,8", "9,17"), tandem.Corrupt, `"w" is at bytes 9 to 17`},
		{"hole at the start", one(`"dtype":"F32","shape":[1],"data_offsets":[4,8]`), tandem.Corrupt,
			`bytes 0 to 4 of the data, before tensor "w"`},
		{"bytes left", one(`"dtype":"F32","shape":[1],"data_offsets":[0,4]`), tandem.Corrupt, "the last 4 bytes of the file, after byte 4"},
		{"long name of control characters", sttest.Raw(`{"`+strings.Repeat(`\n`, 5000)+`":{"dtype":"Q"}}`, nil), tandem.Unsupported,
			`\n"… has dtype`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(c.data)
			wantError(t, err, c.kind, c.says)
		})
	}
	for name, data := range map[string][]byte{"no tensors": sttest.Raw("{}", nil), "not sorted": two("8,16", "0,8"),
		"spaces at the end": sttest.Raw("{}      ", nil)} {
		if _, err := Parse(data); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A file that is cut anywhere is refused.
func TestTruncated(t *testing.T) {
	data := sample().Bytes()
	for n := range data {
		if _, err := Parse(data[:n]); tandem.KindOf(err) != tandem.Corrupt {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(data), err)
		}
	}
}

func TestPaths(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(filepath.Join(dir, "no\nsuch"))
	wantError(t, err, tandem.Invalid, `no\nsuch`)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v: want ErrNotExist", err)
	}
	_, err = Open(dir)
	wantError(t, err, tandem.Invalid, "is not a regular file")
}

func TestIndex(t *testing.T) {
	dir := t.TempDir()
	var a, b sttest.File
	a.Set("x", sttest.F32([]float32{1}, 1))
	b.Set("y", sttest.F32([]float32{2, 3}, 2))
	a.Write(t, filepath.Join(dir, "model-1.safetensors"))
	b.Write(t, filepath.Join(dir, "model-2.safetensors"))
	at := func(text string) string {
		return sttest.Put(t, filepath.Join(dir, "model.safetensors.index.json"), []byte(text))
	}
	f, err := Open(at(`{"metadata":{"total_size":12},"weight_map":{"y":"model-2.safetensors","x":"model-1.safetensors"}}`))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, buf := make([]float32, 2), []byte(nil)
	if err := f.Tensor("y").Floats(got, &buf, 0); err != nil || got[1] != 3 || len(f.Tensors()) != 2 || f.Size() == 0 {
		t.Errorf("y is %v, %v", got, err)
	}
	for says, text := range map[string]string{
		"no JSON object with a weight_map":       `{"weight_map":[]}`,
		"a weight_map of 0 tensors":              `{}`,
		"has more after its object, at byte 43":  `{"weight_map":{"x":"model-1.safetensors"}}{}`,
		`"x" in file "../model-1.safetensors"`:   `{"weight_map":{"x":"../model-1.safetensors"}}`,
		`"x" in file "model-1.bin"`:              `{"weight_map":{"x":"model-1.bin"}}`,
		`model-3.safetensors: no such file`:      `{"weight_map":{"x":"model-3.safetensors"}}`,
		`tensor "z" is not in`:                   `{"weight_map":{"x":"model-1.safetensors","z":"model-1.safetensors"}}`,
		`the index has it in ""`:                 `{"weight_map":{"x":"model-1.safetensors","z":"model-2.safetensors"}}`,
		`"x" is in ` + dir + `/model-1.safetens`: `{"weight_map":{"x":"model-2.safetensors","y":"model-1.safetensors"}}`,
	} {
		_, err := Open(at(text))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v for %s: want %q", err, text, says)
		}
	}
}

// Reading a header takes memory in proportion to its bytes.
func TestMemory(t *testing.T) {
	var header strings.Builder
	header.WriteByte('{')
	for i := range 20000 {
		fmt.Fprintf(&header, `"tensor.%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},`, i)
	}
	data := sttest.Raw(strings.TrimSuffix(header.String(), ",")+"}", nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Parse(data); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(data)); got > 40 {
		t.Errorf("%.1f bytes allocated per byte of the file: want at most 40", got)
	}
	path := sttest.Put(t, filepath.Join(t.TempDir(), "sparse.safetensors"), binary.LittleEndian.AppendUint64(nil, 4<<30))
	if err := os.Truncate(path, 5<<30); err != nil {
		t.Skip("no sparse files here: ", err)
	}
	runtime.ReadMemStats(&before)
	_, err := Open(path)
	runtime.ReadMemStats(&after)
	wantError(t, err, tandem.Unsupported, "a header of 4294967296 bytes")
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("%d bytes allocated for a header of 4 GB: want less than 1 MiB", got)
	}
}

// FuzzParse: whatever the bytes are, reading them gives an error of a kind that blames the file, or tensors that fill it and can be read.
func FuzzParse(f *testing.F) {
	f.Add(sample().Bytes())
	f.Add(sttest.Raw("{}", nil))
	f.Add(sttest.Raw(`{"w":{"shape":[2],"data_offsets":[4,12],"dtype":"F32"},"v":{"dtype":"I8","shape":[2,2],"data_offsets":[0,4]}}`,
		make([]byte, 12)))
	f.Add(sttest.Raw(`{"w":{"dtype":"BOOL","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, []byte{2}))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			if k := tandem.KindOf(err); k != tandem.Corrupt && k != tandem.Unsupported || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%v of kind %v", err, k)
			}
			return
		}
		var all int64
		buf := []byte(nil)
		for i := range file.Tensors() {
			x := &file.Tensors()[i]
			all += x.size
			n := min(x.Elements(), 1<<16)
			err := x.Floats(make([]float32, n), &buf, x.Elements()-n)
			if _, ierr := x.Ints(1 << 16); err != nil && x.IsFloat() || err == nil && !x.IsFloat() || ierr == nil && x.IsFloat() {
				t.Fatalf("tensor %q: %v, %v", x.Name, err, ierr)
			}
			if file.Tensor(x.Name) != x {
				t.Fatalf("tensor %q is not found", x.Name)
			}
		}
		if header := int64(binary.LittleEndian.Uint64(data)); lengthBytes+header+all != int64(len(data)) {
			t.Fatalf("%d bytes of tensors and a header of %d in a file of %d", all, header, len(data))
		}
	})
}

// FuzzIndex: whatever an index says, no file outside of its folder is opened.
func FuzzIndex(f *testing.F) {
	for _, s := range []string{`{"weight_map":{"x":"a.safetensors"}}`, `{"weight_map":{"x":"../a.safetensors"}}`, `{}`, `[`,
		`{"weight_map":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &source{path: "index", at: bytes.NewReader(data), size: int64(len(data))}
		places, err := s.index()
		if err != nil {
			if k := tandem.KindOf(err); k != tandem.Corrupt && k != tandem.Unsupported {
				t.Fatalf("%v of kind %v", err, k)
			}
			return
		}
		for _, name := range places {
			if filepath.Join("/dir", name) != "/dir/"+name || strings.Contains(name, "/") {
				t.Fatalf("file %q", name)
			}
		}
	})
}

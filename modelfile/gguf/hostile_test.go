package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// raw builds files that Writer refuses to.
type raw struct{ bytes.Buffer }

func begin(version uint32, tensors, keys uint64) *raw {
	r := &raw{}
	r.WriteString(magic)
	return r.put(version, tensors, keys)
}

func (r *raw) put(values ...any) *raw {
	for _, v := range values {
		if s, ok := v.(string); ok {
			v = append(binary.LittleEndian.AppendUint64(nil, uint64(len(s))), s...)
		}
		if err := binary.Write(r, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	return r
}

func (r *raw) zeros(n int) *raw {
	r.Write(make([]byte, n))
	return r
}

func tensorInfo(name string, typ uint32, off uint64, shape ...uint64) []any {
	return []any{name, uint32(len(shape)), shape, typ, off}
}

func TestHostile(t *testing.T) {
	const u8, str, arr = uint32(U8), uint32(String), uint32(Array)
	one := func(typ uint32, off uint64, shape ...uint64) *raw {
		return begin(3, 1, 0).put(tensorInfo("w", typ, off, shape...)...).zeros(256)
	}
	two := func(name string, off uint64) *raw {
		return begin(3, 2, 0).put(tensorInfo("v", 0, 0, 16)...).put(tensorInfo(name, 0, off, 16)...).zeros(256)
	}
	for _, c := range []struct {
		name string
		file *raw
		kind tandem.Kind
		says string
	}{
		{"version 0", begin(0, 0, 0), tandem.Unsupported, "GGUF version 0: want version 2 or 3"},
		{"version 1", begin(1, 0, 0), tandem.Unsupported, "GGUF version 1: want version 2 or 3"},
		{"version 4", begin(4, 0, 0), tandem.Unsupported, "GGUF version 4"},
		{"big-endian", begin(3<<24, 0, 0), tandem.Unsupported, "big-endian GGUF (version 3): want little-endian"},
		{"magic alone", &raw{*bytes.NewBufferString(magic)}, tandem.Corrupt, "needs 4 bytes but the file has 0 left"},
		{"tensor count", begin(3, math.MaxUint64, 0), tandem.Corrupt, "has 18446744073709551615 tensors"},
		{"tensor count beyond the file", begin(3, 1000, 0), tandem.Corrupt, "has 1000 tensors but the file has"},
		{"key count", begin(3, 0, math.MaxInt64), tandem.Corrupt, "has 9223372036854775807 keys"},
		{"most keys", begin(3, 0, maxKeys+1).zeros(minKey * (maxKeys + 1)), tandem.Corrupt, "has 65537 keys: at most 65536 allowed"},
		{"most tensors", begin(3, maxTensors+1, 0).zeros(minTensor * (maxTensors + 1)), tandem.Corrupt,
			"has 262145 tensors: at most 262144 allowed"},
		{"key count beyond the file", begin(3, 0, 99).zeros(99), tandem.Corrupt, "has 99 keys but the file has"},
		{"key without a name", begin(3, 0, 1).put("", u8).zeros(9), tandem.Corrupt, "the name of key 0 is empty"},
		{"name too long", begin(3, 0, 1).put(uint64(1 << 40)).zeros(99), tandem.Corrupt,
			"the name of key 0 at byte 24 has 1099511627776 bytes: at most 16777216 allowed"},
		{"name cut", begin(3, 0, 1).put(uint64(500)).zeros(99), tandem.Corrupt, "500 bytes but the file has 99"},
		{"value type", begin(3, 0, 1).put("k", uint32(13)).zeros(9), tandem.Unsupported, `key "k" has value type 13: want 0 to 12`},
		{"bool 2", begin(3, 0, 1).put("k", uint32(Bool), uint8(2)).zeros(9), tandem.Corrupt, `key "k" is a bool of value 2`},
		{"array of arrays", begin(3, 0, 1).put("k", arr, arr, uint64(1)).zeros(9), tandem.Unsupported, "array of array"},
		{"array type", begin(3, 0, 1).put("k", arr, uint32(99), uint64(1)).zeros(9), tandem.Unsupported, "array of value type 99"},
		{"array too long", begin(3, 0, 1).put("k", arr, u8, uint64(65<<20)).zeros(9), tandem.Corrupt, "at most 67108864 allowed"},
		{"array beyond the file", begin(3, 0, 1).put("k", arr, uint32(Float64), uint64(10)).zeros(79), tandem.Corrupt, `key "k" at byte`},
		{"strings beyond the file", begin(3, 0, 1).put("k", arr, str, uint64(2), "a", uint64(99)).zeros(9), tandem.Corrupt,
			"has 99 bytes but the file has 9"},
		{"key twice", begin(3, 0, 2).put("k", u8, uint8(0), "k", u8, uint8(0)).zeros(9), tandem.Corrupt,
			`key "k" is there twice, as number 0 and 1`},
		{"alignment 0", begin(3, 0, 1).put("general.alignment", uint32(U32), uint32(0)), tandem.Corrupt,
			`"general.alignment" is 0: want a power of two`},
		{"alignment 48", begin(3, 0, 1).put("general.alignment", uint32(U32), uint32(48)), tandem.Corrupt, "is 48: want a power of two"},
		{"alignment of another type", begin(3, 0, 1).put("general.alignment", str, "x"), tandem.Corrupt,
			`is "x" (string): want an integer`},
		{"split", begin(3, 0, 2).put("split.no", uint32(U16), uint16(1), "split.count", uint32(U16), uint16(3)), tandem.Unsupported,
			"file 2 of a model split into 3: want all of them"},
		{"split of another type", begin(3, 0, 1).put("split.count", str, "x"), tandem.Corrupt, `"split.count" is "x" (string)`},
		{"no dimensions", one(0, 0), tandem.Corrupt, `tensor "w" has 0 dimensions: want 1 to 4`},
		{"five dimensions", one(0, 0, 1, 1, 1, 1, 1), tandem.Corrupt, "has 5 dimensions"},
		{"size 0", one(0, 0, 4, 0), tandem.Corrupt, "has size 0 in dimension 1"},
		{"size -1", one(0, 0, math.MaxUint64), tandem.Corrupt, "has size 18446744073709551615 in dimension 0"},
		{"size overflow", one(0, 0, 1<<32, 1<<32, 4), tandem.Corrupt, "in dimension 1"},
		{"rows not of blocks", one(8, 0, 33), tandem.Corrupt, "rows of 33 elements: want a multiple of 32 for type q8_0"},
		{"unknown type", one(1000, 0, 32), tandem.Unsupported, `tensor "w" has type 1000: its layout is not known`},
		{"withdrawn type", one(4, 0, 32), tandem.Unsupported, `has type q4_2 (4): its layout is not known`},
		{"unaligned", one(0, 16, 4), tandem.Corrupt, "begins at byte 16 of the data: want a multiple of 32"},
		{"begins outside", one(0, 1<<62, 4), tandem.Corrupt, "begins at byte 4611686018427387904 of the data but"},
		{"ends outside", one(0, 0, 1<<40), tandem.Corrupt, "ends at byte 4398046511"},
		{"overlap", two("w", 32), tandem.Corrupt, `tensors "v" and "w" overlap at byte`},
		{"same place", two("w", 0), tandem.Corrupt, "overlap"},
		{"tensor twice", two("v", 64), tandem.Corrupt, `tensor "v" is there twice`},
		{"name of control characters", begin(3, 0, 2).put("k\n\x00", u8, uint8(0), "k\n\x00", u8, uint8(0)).zeros(9), tandem.Corrupt,
			`"k\n\x00"`},
		{"long name", begin(3, 1, 0).put(tensorInfo(strings.Repeat("x", 100000), 4, 0, 32)...).zeros(99), tandem.Unsupported,
			`xxx"… has type q4_2`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(c.file.Bytes())
			wantError(t, err, c.kind, c.says)
		})
	}
	if _, err := Parse(two("w", 64).Bytes()); err != nil {
		t.Error(err)
	}
	v2, err := Parse(begin(2, 0, 1).put("k", u8, uint8(7)).Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := v2.Int("k", 0, 9); n != 7 || err != nil || v2.Version() != 2 {
		t.Errorf("version 2: k = %d, %v", n, err)
	}
}

// Headers as dense as they can be: what parsing allocates stays a small multiple of the file.
func TestMemoryBound(t *testing.T) {
	const n = 20000
	keys := begin(3, 0, n)
	tensors := begin(3, n, 0)
	for i := range n {
		name := string(binary.LittleEndian.AppendUint16(nil, uint16(i)))
		keys.put(name, uint32(U8), uint8(0))
		tensors.put(tensorInfo(name, 24, uint64(i*32), 1)...)
	}
	tensors.zeros(32 * n)
	strs := begin(3, 0, 1).put("k", uint32(Array), uint32(String), uint64(100*n)).zeros(800 * n)
	lie := begin(3, 0, 1).put("k", uint32(Array), uint32(String), uint64(100*n)).put(uint64(16 << 20)).zeros(800*n - 8)
	for name, file := range map[string][]byte{"keys": keys.Bytes(), "tensors": tensors.Bytes(), "strings": strs.Bytes(),
		"a lie": lie.Bytes()} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f, err := Parse(file)
		if err == nil && name == "strings" {
			_, err = f.Strings("k")
		}
		runtime.ReadMemStats(&after)
		if (err != nil) != (name == "a lie") {
			t.Errorf("%s: %v", name, err)
		}
		got := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(file))
		t.Logf("%s: %d bytes, %.1f bytes allocated for each", name, len(file), got)
		if got > 12 {
			t.Errorf("%s: %.1f bytes allocated per byte of the file: want at most 12", name, got)
		}
	}
}

// A header of 24 bytes in a sparse file of 5 GB, which has room for whatever the header counts, is refused at
// once and for next to no memory.
func TestSparseFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sparse.gguf")
	for _, c := range []struct {
		tensors, keys uint64
		says          string
	}{
		{0, 369_098_752, "has 369098752 keys: at most 65536 allowed"},
		{100_000_000, 0, "has 100000000 tensors: at most 262144 allowed"},
		{0, maxKeys, "the name of key 0 is empty"},
		{maxTensors, 0, "the name of tensor 0 is empty"},
	} {
		if err := os.WriteFile(path, begin(3, c.tensors, c.keys).Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, 5<<30); err != nil {
			t.Skip("no sparse files here: ", err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Open(path)
		runtime.ReadMemStats(&after)
		wantError(t, err, tandem.Corrupt, c.says)
		if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20 {
			t.Errorf("%d tensors and %d keys: %d bytes allocated for a header of 24: want at most 16 MiB", c.tensors, c.keys, got)
		}
	}
}

func TestCopyOf(t *testing.T) {
	data := sample(t)
	f, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if again := written(t, CopyOf(f)); !bytes.Equal(again, data) {
		t.Error("a copy differs from the file")
	}
	w := CopyOf(f)
	w.Set("i32", int32(0))
	w.DropKey("u8")
	w.DropTensor("b")
	w.Set("general.alignment", uint32(64))
	w.TensorFunc("z", F32, []int{1}, func(to io.Writer) error { _, err := to.Write([]byte{1, 2, 3, 4}); return err })
	g, err := Parse(written(t, w))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := g.Int("i32", 0, 0); err != nil || g.Has("u8") || g.Tensor("b") != nil || g.Alignment() != 64 || g.Keys()[5].Name != "i32" {
		t.Errorf("changed copy: i32 = %d, %v, keys %v", n, err, g.Keys())
	}
	if z := g.Tensor("z"); z == nil || string(bytesOf(t, z)) != "\x01\x02\x03\x04" || z.off%64 != 0 || z.off == 0 {
		t.Errorf("z = %+v", z)
	}
}

func TestWriterRefuses(t *testing.T) {
	for says, spoil := range map[string]func(w *Writer){
		"key has no name":               func(w *Writer) { w.Set("", true) },
		`key "k" is a int: want a bool`: func(w *Writer) { w.Set("k", 1) },
		`is 3 (uint32): want a power`:   func(w *Writer) { w.Set("general.alignment", uint32(3)) },
		"tensor has no name":            func(w *Writer) { w.Tensor("", F32, []int{1}, make([]byte, 4)) },
		"shape [2] has 4 bytes: want 8": func(w *Writer) { w.Tensor("w", F32, []int{2}, make([]byte, 4)) },
		"has shape [0]":                 func(w *Writer) { w.Tensor("w", F32, []int{0}, nil) },
		"a multiple of 32 for":          func(w *Writer) { w.Tensor("w", Q8_0, []int{31}, nil) },
		"type q4_2":                     func(w *Writer) { w.Tensor("w", 4, []int{32}, nil) },
		"written with 0 bytes: want 4":  func(w *Writer) { w.TensorFunc("w", F32, []int{1}, func(io.Writer) error { return nil }) },
		"no space": func(w *Writer) {
			w.TensorFunc("w", F32, []int{1}, func(io.Writer) error { return fmt.Errorf("no space") })
		},
	} {
		w := NewWriter()
		spoil(w)
		if _, err := w.WriteTo(io.Discard); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v does not say %q", err, says)
		}
	}
}

// FuzzParse checks that no file makes Parse or a getter fail otherwise than by an error, and that what
// was read survives being written and read again.
func FuzzParse(f *testing.F) {
	for _, data := range seeds(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if says := judge(data, Parse); says != "" {
			t.Fatal(says)
		}
		file, err := Parse(data)
		if err != nil {
			return
		}
		for _, k := range file.Keys() {
			file.Describe(k.Name)
			_, _ = file.Strings(k.Name)
			_, _ = file.Floats(k.Name)
			_, _ = file.Ints(k.Name, math.MinInt, math.MaxInt)
			_, _ = file.Float(k.Name)
			_, _ = file.Uint(k.Name)
		}
		again, err := Parse(written(t, CopyOf(file)))
		if err != nil {
			t.Fatal(err)
		}
		for i := range file.Tensors() {
			a := &file.Tensors()[i]
			if b := again.Tensor(a.Name); b == nil || !bytes.Equal(bytesOf(t, a), bytesOf(t, b)) {
				t.Fatalf("tensor %q changed", a.Name)
			}
		}
		for _, k := range file.Keys() {
			if file.Describe(k.Name) != again.Describe(k.Name) {
				t.Fatalf("key %q changed", k.Name)
			}
		}
	})
}

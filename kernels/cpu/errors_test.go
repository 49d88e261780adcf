package cpu_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

func wantError(t *testing.T, what string, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: error %v, want one that says %q", what, err, text)
	}
}

func matrix(typ kernels.Type, rows, cols int) kernels.Weight {
	return kernels.Weight{Name: "w", Type: typ, Rows: rows, Cols: cols, Layout: kernels.Groups16}
}

func alloc(t testing.TB, bytes int) []byte {
	t.Helper()
	m, err := cpu.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Free)
	return m.Bytes()
}

func TestPackErrors(t *testing.T) {
	m := matrix(kernels.Q8_0, 40, 32)
	p := kernels.NewProgram(1, 0)
	w := p.Weight(m)
	p.MatMul(w, p.Act(32), p.Buf(40), kernels.MatMulOpt{})
	dev := testdevice.CPU(t, 1)
	s, err := dev.NewWeights(p)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	src := make([]byte, 41*34)
	wantError(t, "half a row", s.Pack(w, 0, src[:33]), "33 bytes")
	wantError(t, "nothing", s.Pack(w, 0, nil), "0 bytes")
	wantError(t, "odd start", s.Pack(w, 8, src[:34]), "rows 8 to 8 of 40")
	wantError(t, "negative start", s.Pack(w, -16, src[:16*34]), "rows -16")
	wantError(t, "too many", s.Pack(w, 0, src), "rows 0 to 40 of 40")
	wantError(t, "past the end", s.Pack(w, 32, src[:16*34]), "rows 32 to 47 of 40")
	wantError(t, "a partial group inside", s.Pack(w, 0, src[:8*34]), "multiple of 16")
	wantError(t, "another weight", s.Pack(1, 0, src[:8*34]), "weight 1 of 1")
	if err := s.Pack(w, 32, src[:8*34]); err != nil {
		t.Errorf("the last 8 rows: %v", err)
	}
	p.Weights[w].Layout = kernels.Rows
	_, err = dev.NewWeights(p)
	wantError(t, "another layout", err, `weights in layout "rows"`)
	if l := dev.Layout(kernels.Type(99)); l != "" {
		t.Errorf("layout of an unknown type: %q", l)
	}
}

// TestCompileErrors: a runner gets weights, and a cache of its own device and shape.
func TestCompileErrors(t *testing.T) {
	dev := testdevice.CPU(t, 1)
	p := kernels.NewProgram(1, 0)
	p.KV = kernels.UniformKV(1, 2, 16, kernels.KVF16)
	p.StoreKV(p.Buf(32), p.Buf(32), 0)
	other, err := dev.NewCache(kernels.UniformKV(1, 2, 20, kernels.KVF16), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	foreign, err := testdevice.Ref().NewCache(p.KV, 2)
	if err != nil {
		t.Fatal(err)
	}
	for text, c := range map[string]kernels.Cache{"type <nil>": nil, "not of the shape": other, "type *device": foreign} {
		_, err := dev.Compile(p, nil, c)
		wantError(t, text, err, text)
	}
	p.MatMul(p.Weight(matrix(kernels.F32, 16, 8)), p.Act(8), p.Buf(16), kernels.MatMulOpt{})
	_, err = dev.Compile(p, nil, nil)
	wantError(t, "no weights", err, "KV cache")
	_, err = dev.NewCache(kernels.UniformKV(1, 2, 16, kernels.KVF16), -1)
	wantError(t, "pages", err, "-1 pages")
}

func TestPackInPieces(t *testing.T) {
	const n, k = 70, 512
	for _, typ := range kernels.Types() {
		src, m := kerneltest.RandomRows(rand.New(rand.NewPCG(1, 7)), typ, n, k), matrix(typ, n, k)
		size := len(src) / n
		one, two := alloc(t, m.Bytes()), alloc(t, m.Bytes())
		if err := cpu.Pack(one, m, 0, src); err != nil {
			t.Fatal(err)
		}
		for from := 0; from < n; from += 32 {
			if err := cpu.Pack(two, m, from, src[from*size:min(from+32, n)*size]); err != nil {
				t.Fatal(err)
			}
		}
		if string(one) != string(two) {
			t.Errorf("%v: packed in pieces differs from packed at once", typ)
		}
		if file := len(src) / n * 80; len(one) > file*102/100 {
			t.Errorf("%v: %d bytes packed for %d of whole groups in the file, want at most 2 %% more", typ, len(one), file)
		}
	}
}

// TestLayoutBytes: package kernels and C agree on the size of packed weights.
func TestLayoutBytes(t *testing.T) {
	for _, typ := range kernels.Types() {
		elems, _ := typ.Block()
		for cols := elems; cols <= 40*elems; cols += elems {
			m := matrix(typ, 16, cols)
			if got, want := m.Bytes(), cpu.GroupBytes(&m); got != want {
				t.Errorf("%v, %d inputs: a group of %d bytes, want %d", typ, cols, got, want)
			}
		}
	}
}

func TestAllocErrors(t *testing.T) {
	_, err := cpu.Alloc(-1)
	wantError(t, "negative", err, "-1 bytes")
	_, err = cpu.Alloc(1 << 60)
	wantError(t, "huge", err, "1152921504606846976 bytes")
	m, err := cpu.Alloc(0)
	if err != nil || len(m.Bytes()) != 0 || m.Lock() != nil {
		t.Errorf("nothing: %v, %d bytes", err, len(m.Bytes()))
	}
	m.Free()
}

func TestParseISA(t *testing.T) {
	for _, i := range append(cpu.Supported(), cpu.Auto) {
		if got, err := cpu.ParseISA(i.String()); err != nil || got != i {
			t.Errorf("%v reads back as %v, %v", i, got, err)
		}
	}
	_, err := cpu.ParseISA("sse9")
	wantError(t, "sse9", err, `"sse9"`)
}

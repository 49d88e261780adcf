package kernels_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	kernels "github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/ref"
)

var types = kernels.Types()

// scales tells where a block's f16 scales are in a file.
var scales = map[kernels.Type][]int{
	kernels.F16: {0}, kernels.BF16: {0}, kernels.F32: {0}, kernels.Q8_0: {0}, kernels.Q4_0: {0}, kernels.Q5_0: {0}, kernels.IQ4_NL: {0},
	kernels.Q4_1: {0, 2}, kernels.Q5_1: {0, 2}, kernels.Q4_K: {0, 2}, kernels.Q5_K: {0, 2}, kernels.Q6_K: {208}, kernels.Q2_K: {80, 82},
	kernels.Q3_K: {108}, kernels.IQ4_XS: {0},
}

// half returns the f16 of x.
func half(b []byte, x float32) { binary.LittleEndian.PutUint16(b, ref.ToF16(x)) }

// randomRows returns GGUF bytes of rows·cols weights: any codes, and scales of about 0.01.
func randomRows(r *rand.Rand, t kernels.Type, rows, cols int) []byte {
	elems, size := t.Block()
	b := make([]byte, rows*cols/elems*size)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	for i := 0; i < len(b); i += size {
		scale := func() float32 { return float32(r.NormFloat64()) * 0.01 }
		switch t {
		case kernels.F32:
			binary.LittleEndian.PutUint32(b[i:], math.Float32bits(scale()))
		case kernels.F16:
			half(b[i:], scale())
		case kernels.BF16:
			binary.LittleEndian.PutUint16(b[i:], uint16(math.Float32bits(scale())>>16))
		case kernels.MXFP4:
			b[i] = byte(110 + r.IntN(20))
		default:
			for _, at := range scales[t] {
				half(b[i+at:], scale())
			}
		}
	}
	return b
}

// hostileRows is randomRows with scales and weights of every class: zeros, denormals, infinities, NaN.
func hostileRows(r *rand.Rand, t kernels.Type, rows, cols int) []byte {
	b := randomRows(r, t, rows, cols)
	_, size := t.Block()
	special := []uint16{0, 0x8000, 1, 0x83ff, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e01, 0x0400}
	for i := 0; i < len(b); i += size {
		for _, o := range scales[t] {
			if r.IntN(8) == 0 {
				s := special[r.IntN(len(special))]
				if t == kernels.F32 {
					binary.LittleEndian.PutUint32(b[i:], uint32(s)<<16|uint32(r.IntN(3)))
					continue
				}
				binary.LittleEndian.PutUint16(b[i+o:], s)
			}
		}
	}
	return b
}

// randomFloats returns n normal values; hostile ones include zeros, denormals, extremes, Inf and NaN.
func randomFloats(r *rand.Rand, n int, hostile bool) []float32 {
	special := []float32{0, float32(math.Copysign(0, -1)), 1e-45, -1e-40, 1e-31, 1e-30, 3e38, -3e38, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
		if hostile && r.IntN(40) == 0 {
			x[i] = special[r.IntN(len(special))]
		}
	}
	if hostile && n >= 64 { // one block of zeros, one of tiny values
		clear(x[:32])
		for i := 32; i < 64; i++ {
			x[i] = float32(r.NormFloat64()) * 1e-31
		}
	}
	return x
}

// same reports whether two values have the same bits or are both NaN.
func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// firstDifference returns the first index where a and b differ, or -1.
func firstDifference(a, b []float32) int {
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	for i := range a {
		if !same(a[i], b[i]) {
			return i
		}
	}
	return -1
}

func wantSame(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if i := firstDifference(got, want); i >= 0 {
		t.Fatalf("%s: element %d of %d is %v (%#x), want %v (%#x)", what, i, len(want), got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
	}
}

func alloc(t testing.TB, bytes int) []byte {
	t.Helper()
	m, err := kernels.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Free)
	return m.Bytes()
}

func packed(t testing.TB, typ kernels.Type, rows, cols int, src []byte) *kernels.Matrix {
	t.Helper()
	m, err := kernels.NewMatrix(typ, rows, cols, alloc(t, kernels.PackedBytes(typ, rows, cols)))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Pack(src, 0); err != nil {
		t.Fatal(err)
	}
	return m
}

func newPool(t testing.TB, threads int, isa kernels.ISA) *kernels.Pool {
	t.Helper()
	p, err := kernels.NewPool(threads, isa)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func seal(t testing.TB, p *kernels.Program) *kernels.Program {
	t.Helper()
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Free)
	return p
}

func run(t testing.TB, p *kernels.Program, pool *kernels.Pool, pass *kernels.Pass) {
	t.Helper()
	if err := p.Run(pool, pass); err != nil {
		t.Fatal(err)
	}
}

// pools returns a pool for every instruction set and each of the thread counts.
func pools(t testing.TB, threads ...int) []*kernels.Pool {
	var all []*kernels.Pool
	for _, isa := range kernels.Supported() {
		for _, n := range threads {
			all = append(all, newPool(t, n, isa))
		}
	}
	return all
}

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

package emulated_test

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// same reports whether two values have the same bits, or are both NaN.
func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// floats returns numbers of all magnitudes, those around the borders of halves, and what is no number.
func floats(n int) []float32 {
	v := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, float32(math.Inf(1)), float32(math.Inf(-1)),
		float32(math.NaN()), math.MaxFloat32, math.SmallestNonzeroFloat32, 0x1p-126, -0x1p-127, 65504, 65519.996, 65520, 0x1p-14,
		0x1.ffcp-15, 0x1p-24, 0x1p-25, 0x1.000002p-25, 0x1.8p-24}
	rng := rand.New(rand.NewPCG(3, 4))
	for len(v) < n {
		switch x := rng.Uint32(); rng.IntN(3) {
		case 0:
			v = append(v, math.Float32frombits(x))
		case 1: // between two halves, or near it
			h := half.Float(uint16(x))
			next := half.Float(uint16(x) + 1)
			v = append(v, (h+next)/2, math.Nextafter32((h+next)/2, next))
		default:
			v = append(v, (rng.Float32()-0.5)*float32(math.Exp2(float64(rng.IntN(24)))))
		}
	}
	return v[:n]
}

func TestHalves(t *testing.T) {
	r := open(t, emulated.Options{})
	halves := make([]uint16, 1<<16)
	for i := range halves {
		halves[i] = uint16(i)
	}
	for i, got := range calc[float32](r, "to_float", halves, len(halves), 1) {
		if want := half.Float(uint16(i)); !same(got, want) {
			t.Fatalf("half %04x is %v, want %v", i, got, want)
		}
	}
	in := floats(1 << 20)
	for i, got := range calc[uint16](r, "to_half", in, len(in), 1) {
		want := half.From(in[i])
		if in[i] != in[i] {
			want = 0x7fff // CUDA has one NaN
		}
		if got != want {
			t.Fatalf("%x is half %04x, want %04x", in[i], got, want)
		}
	}
}

func TestFloats(t *testing.T) {
	r := open(t, emulated.Options{})
	const n = 100_000
	in := floats(3 * n)
	rand.New(rand.NewPCG(5, 6)).Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
	fma, plain := calc[float32](r, "fma_of", in, n, 1), calc[float32](r, "mul_add", in, n, 1)
	differ := 0
	for i := range n {
		a, b, c := in[3*i], in[3*i+1], in[3*i+2]
		if want := ref.FMA(a, b, c); !same(fma[i], want) {
			t.Fatalf("fma(%x, %x, %x) is %x, want %x", a, b, c, fma[i], want)
		}
		if want := float32(a*b) + c; !same(plain[i], want) {
			t.Fatalf("%x·%x + %x is %x, want %x", a, b, c, plain[i], want)
		}
		if !same(fma[i], plain[i]) {
			differ++
		}
	}
	if differ < 100 {
		t.Errorf("fma and a product and a sum differ for %d of %d: better inputs are needed", differ, n)
	}
	for i, got := range calc[[6]float32](r, "rounds", in[:n], n, 1) {
		x := in[i]
		least, most := x, x
		if !(x < 0.5) {
			least = 0.5
		}
		if !(x > -0.5) {
			most = -0.5
		}
		want := [6]float32{float32(math.RoundToEven(float64(x))), float32(math.Sqrt(math.Abs(float64(x)))),
			float32(math.Floor(float64(x) * 1.1)), float32(math.RoundToEven(float64(x))), least, most}
		for k := range want {
			if !same(got[k], want[k]) {
				t.Fatalf("result %d of %x is %x, want %x", k, x, got[k], want[k])
			}
		}
	}
}

func TestIntegers(t *testing.T) {
	r := open(t, emulated.Options{})
	const n = 20_000
	rng := rand.New(rand.NewPCG(7, 8))
	in := make([]uint32, 3*n)
	for i := range in {
		in[i] = rng.Uint32() >> rng.IntN(33)
	}
	copy(in, []uint32{0x80808080, 0x80808080, 0x7fffffff, 0x80808080, 0x7f7f7f7f, 0x80000000})
	for i, got := range calc[int32](r, "dp4a", in, n, 1) {
		a, b, want := in[3*i], in[3*i+1], int32(in[3*i+2])
		for k := 0; k < 32; k += 8 {
			want += int32(int8(a>>k)) * int32(int8(b>>k))
		}
		if got != want {
			t.Fatalf("dp4a(%08x, %08x, %d) is %d, want %d", a, b, int32(in[3*i+2]), got, want)
		}
	}
	for i, got := range calc[[4]byte](r, "permute", in, n, 1) {
		both, at := uint64(in[3*i+1])<<32|uint64(in[3*i]), in[3*i+2]
		for k := range got {
			n := at >> (4 * k)
			want := byte(both >> (n & 7 * 8))
			if n&8 != 0 { // the sign alone
				want = byte(int8(want) >> 7)
			}
			if got[k] != want {
				t.Fatalf("byte %d of permute(%016x, %08x) is %02x, want %02x", k, both, at, got[k], want)
			}
		}
	}
	for i, got := range calc[[4]int32](r, "bits", in[:n], n, 1) {
		x := in[i]
		want := [4]int32{int32(bits.OnesCount32(x)), int32(bits.LeadingZeros32(x)), min(int32(x), 7), int32(max(x, 9))}
		if got != want {
			t.Fatalf("of %08x: got %d, want %d", x, got, want)
		}
	}
}

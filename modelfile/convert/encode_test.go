package convert

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// kinds are sorts of weights that a block of 256 may hold.
var kinds = map[string]func(r *rand.Rand, i int) float32{
	"normal":       func(r *rand.Rand, _ int) float32 { return float32(r.NormFloat64()) * 0.02 },
	"one outlier":  func(r *rand.Rand, i int) float32 { return float32(r.NormFloat64()) * max(0.02, float32(1-i)) },
	"all positive": func(r *rand.Rand, _ int) float32 { return 5 + r.Float32() },
	"all negative": func(r *rand.Rand, _ int) float32 { return -5 - r.Float32() },
	"sub-blocks of other sizes": func(r *rand.Rand, i int) float32 {
		return float32(r.NormFloat64()) * float32(math.Ldexp(1, -i/32))
	},
	"half zeros": func(r *rand.Rand, i int) float32 { return float32(r.NormFloat64()) * float32(i/128) },
	"constant":   func(*rand.Rand, int) float32 { return -0.3 },
	"zeros":      func(*rand.Rand, int) float32 { return 0 },
	"large":      func(r *rand.Rand, _ int) float32 { return float32(r.NormFloat64()) * 1e4 },
	"tiny":       func(r *rand.Rand, _ int) float32 { return float32(r.NormFloat64()) * 1e-6 },
	"denormal":   func(r *rand.Rand, _ int) float32 { return float32(r.NormFloat64()) * 1e-40 },
}

// roundTrip returns what the definition of the type reads out of what encode wrote.
func roundTrip(t *testing.T, typ gguf.Type, x []float32) (raw []byte, y []float32) {
	t.Helper()
	elems, size := typ.Block()
	raw = bytes.Repeat([]byte{0xaa}, len(x)/elems*size) // what was there must not matter
	if err := encode(typ, raw, x); err != nil {
		t.Fatalf("%s: %v", typ, err)
	}
	y = make([]float32, len(x))
	ref.Dequantize(uint32(typ), raw, y)
	return raw, y
}

// The largest error in parts of the largest weight that shares a scale: half a step for symmetric codes, a
// whole one where the other sign ends a step earlier. 5e-8 is what f16 scales round to below 2^-14.
func TestRoundTrip(t *testing.T) {
	for typ, c := range map[gguf.Type]struct {
		span int
		most float64
		tiny float64
	}{
		gguf.F32: {1, 0, 0}, gguf.F16: {1, 0x1p-11, 0x1p-25}, gguf.BF16: {1, 0x1p-8, 0x1p-130},
		gguf.Q8_0: {32, 0.5/127 + 0x1p-11, 127 * 0x1p-25}, gguf.Q4_0: {32, 1./8 + 0x1p-11, 8 * 0x1p-25},
		gguf.Q5_0: {32, 1./16 + 0x1p-11, 16 * 0x1p-25},
		gguf.Q6_K: {256, 1.5 / 32, 4096 * 0x1p-24}, gguf.Q4_K: {256, 1.8 / 15, 1024 * 0x1p-24},
		gguf.Q3_K: {256, 2.2 / 8, 1024 * 0x1p-24}, gguf.Q2_K: {256, 1.8 / 3, 1024 * 0x1p-24},
	} {
		for name, kind := range kinds {
			r := rand.New(rand.NewPCG(1, uint64(typ)))
			for range 40 {
				x := make([]float32, 256)
				for i := range x {
					x[i] = kind(r, i)
				}
				_, y := roundTrip(t, typ, x)
				for i := range x {
					from := i / c.span * c.span
					top := math.Abs(float64(extreme(x[from : from+c.span])))
					if e := math.Abs(float64(x[i]) - float64(y[i])); !(e <= top*c.most+c.tiny) {
						t.Fatalf("%s, %s: weight %d is %g, was %g: off by %.3f of the largest, %g", typ, name, i, y[i], x[i], e/top, top)
					}
				}
			}
		}
	}
}

// R.m.s. errors on normal weights, relative to the weights' r.m.s., are no larger than the types are known to reach.
func TestNormalWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	x := make([]float32, 1<<16)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for typ, most := range map[gguf.Type]float64{gguf.Q8_0: 0.0055, gguf.Q6_K: 0.0175, gguf.Q5_0: 0.047, gguf.Q4_K: 0.075,
		gguf.Q4_0: 0.094, gguf.Q3_K: 0.145, gguf.Q2_K: 0.265} {
		_, y := roundTrip(t, typ, x)
		var sum float64
		for i := range x {
			sum += float64(x[i]-y[i]) * float64(x[i]-y[i])
		}
		if rms := math.Sqrt(sum / float64(len(x))); rms > most || rms < most*0.9 {
			t.Errorf("%s: r.m.s. error %.4f: want %.4f or a little less", typ, rms, most)
		}
	}
}

// The searches of the types of few bits pay: errors beside those of grids that reach just from the least to the largest value of a
// sub-block, whose scales and minima are rounded to the nearest integers of the largest ones.
func TestLowBits(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	var ours, simple [2]float64
	for range 200 {
		x := make([]float32, 256)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		var grids [16]affine
		var top affine
		var largest float32
		for s := range grids {
			v := x[16*s : 16*s+16]
			lo := slices.Min(v)
			grids[s] = affine{(slices.Max(v) - lo) / 3, -lo, 3}
			top.scale, top.min = max(top.scale, grids[s].scale), max(top.min, grids[s].min)
			largest = max(largest, float32(math.Abs(float64(extreme(v)))))
		}
		for s, g := range grids {
			v := x[16*s : 16*s+16]
			g.scale, g.min = top.scale/15*float32(nearest(g.scale/top.scale*15)), top.min/15*float32(nearest(g.min/top.min*15))
			simple[0] += float64(g.errorOf(v))
			simple[1] += float64(three.errorOf(v, largest/-128*float32(nearest(32*extreme(v)/largest))))
		}
		for i, typ := range []gguf.Type{gguf.Q2_K, gguf.Q3_K} {
			_, y := roundTrip(t, typ, x)
			for j := range x {
				ours[i] += float64(x[j]-y[j]) * float64(x[j]-y[j])
			}
		}
	}
	for i, most := range []float64{0.66, 0.88} {
		t.Logf("%d bits: squared error %.3f of that of simple rounding", i+2, ours[i]/simple[i])
		if ours[i] > most*simple[i] {
			t.Errorf("%d bits: squared error %.4g, by simple rounding %.4g: want at most %g of that", i+2, ours[i], simple[i], most)
		}
	}
}

// Values decoded from the types of 32 are encoded again without a change.
func TestStoredAgain(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 5))
	for _, typ := range []gguf.Type{gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q5_0} {
		x := make([]float32, 4096)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		first, y := roundTrip(t, typ, x)
		second, _ := roundTrip(t, typ, y)
		if !bytes.Equal(first, second) {
			t.Errorf("%s: other bytes the second time", typ)
		}
	}
}

// The searches come close to the best of a thousand scales, and of as many grids.
func TestSearches(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 7))
	var ours3, best3, ours6, best6, ours2, best2, ours4, best4 float64
	for range 100 {
		x := make([]float32, 32)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		symmetrics := func(t *symmetric) (ours, best float64) {
			least, top := math.Inf(1), extreme(x[:16])
			for k := range 1000 {
				least = min(least, float64(t.errorOf(x[:16], top/float32(t.least)/(0.5+0.001*float32(k)))))
			}
			return float64(t.errorOf(x[:16], t.scaleOf(x[:16]))), least
		}
		grids := func(x []float32, most int32) (ours, best float64) {
			lo, hi, least := x[0], x[0], math.Inf(1)
			for _, v := range x {
				lo, hi = min(lo, v), max(hi, v)
			}
			for k := range 100 {
				for m := range 60 {
					g := affine{(hi - lo) / (float32(most) * (0.5 + 0.01*float32(k))), max(0, -lo*(0.6+0.01*float32(m))), most}
					least = min(least, float64(g.errorOf(x)))
				}
			}
			g := gridOf(x, most)
			return float64(g.errorOf(x)), least
		}
		add := func(ours, best *float64, a, b float64) { *ours, *best = *ours+a, *best+b }
		a, b := symmetrics(&six)
		add(&ours6, &best6, a, b)
		a, b = symmetrics(&three)
		add(&ours3, &best3, a, b)
		a, b = grids(x, 15)
		add(&ours4, &best4, a, b)
		a, b = grids(x[:16], 3)
		add(&ours2, &best2, a, b)
	}
	if ours3 > 1.05*best3 {
		t.Errorf("scales of Q3_K: error %g, the best found %g", ours3, best3)
	}
	if ours2 > 1.1*best2 {
		t.Errorf("grids of Q2_K: error %g, the best found %g", ours2, best2)
	}
	if ours6 > 1.05*best6 {
		t.Errorf("scales of Q6_K: error %g, the best found %g", ours6, best6)
	}
	if ours4 > 1.1*best4 {
		t.Errorf("grids of Q4_K: error %g, the best found %g", ours4, best4)
	}
}

func TestTooLarge(t *testing.T) {
	for typ, v := range map[gguf.Type]float32{gguf.F16: 65520, gguf.BF16: math.MaxFloat32, gguf.Q8_0: 1e7, gguf.Q4_0: -6e5, gguf.Q5_0: 2e6,
		gguf.Q6_K: 3e8, gguf.Q4_K: -7e7, gguf.Q3_K: 1e7, gguf.Q2_K: -1e7} {
		for _, v := range []float32{v, v / float32(math.Abs(float64(v))) * math.MaxFloat32} {
			x := make([]float32, 256)
			x[100] = v
			elems, size := typ.Block()
			if err := encode(typ, make([]byte, 256/elems*size), x); err == nil {
				t.Errorf("%s takes a weight of %g", typ, v)
			}
		}
	}
}

// fromBits makes weights of bytes, finite.
func fromBits(data []byte) []float32 {
	x := make([]float32, len(data)/1024*256)
	for i := range x {
		b := binary.LittleEndian.Uint32(data[4*i:])
		if b&0x7f800000 == 0x7f800000 {
			b &^= 0x40000000
		}
		x[i] = math.Float32frombits(b)
	}
	return x
}

// FuzzEncode: any finite weights are refused or come back finite, and the same again.
func FuzzEncode(f *testing.F) {
	f.Add(make([]byte, 1024))
	f.Add(bytes.Repeat([]byte{0xff, 0xff, 0x7f, 0x7f, 1, 0, 0, 0x80}, 128))
	f.Add(bytes.Repeat([]byte{0, 0, 0x80, 0x3f, 0, 0, 0x80, 0xbf, 1, 2, 3, 4}, 90)[:1024])
	f.Fuzz(func(t *testing.T, data []byte) {
		x := fromBits(data)
		for _, r := range recipes {
			elems, size := r.most.Block()
			a, b := make([]byte, len(x)/elems*size), make([]byte, len(x)/elems*size)
			if encode(r.most, a, x) != nil {
				continue
			}
			y := make([]float32, len(x))
			ref.Dequantize(uint32(r.most), a, y)
			for i, v := range y {
				if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
					t.Fatalf("%s: %g became %g", r.name, x[i], v)
				}
			}
			if encode(r.most, b, x) != nil || !bytes.Equal(a, b) {
				t.Fatalf("%s: other bytes the second time", r.name)
			}
		}
	})
}

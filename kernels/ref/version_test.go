package ref

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"

	"github.com/tandem-llm/tandem/kernels/half"
)

// digests are those of every operation's results on fixed inputs, by Version. An operation that is new is added to the last one.
var digests = map[int]string{1: "726fd8faa7d6672f8f01d9b80954a257", 2: "99d220f215e54cb30642e06901fd9108",
	3: "9b618eeeb60f0cbffa281d917c78e880"}

// The bits of a version never change. If this fails after an intended change, Version takes the next number, and its
// digest is added.
func TestVersion(t *testing.T) {
	r, h := rng(), sha256.New()
	put := func(values ...float32) {
		for _, v := range values {
			if v != v {
				v = float32(math.NaN()) // any NaN equals any other
			}
			var b [4]byte
			binary.LittleEndian.PutUint32(b[:], math.Float32bits(v))
			h.Write(b[:])
		}
	}
	row := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	for range 2000 {
		a, b, c := anyFloat(r), anyFloat(r), anyFloat(r)
		put(FMA(a, b, c), half.Float(half.From(a)), BF16(half.From(b)))
		put(Exp(float32(r.NormFloat64()*30)), Tanh(float32(r.NormFloat64()*4)), SoftCap(a, 30))
		put(Angle(r.Int32N(1<<20), r.Float64()))
	}
	out := make([]float32, 512)
	x, y := row(512), row(512)
	put(Dot(x, y), Dot(x[:77], y))
	RMSNorm(x, y, 1e-5, out)
	put(out...)
	SiLUMul(x, y, out)
	put(out...)
	GELUMul(x, y, out)
	put(out...)
	NormAdd(x, y, 1e-6, out)
	put(out...)
	for _, halves := range []bool{false, true} {
		turned := row(64)
		RoPE(turned, 12345, []float64{1, 0.5, 0.1, 1e-2, 1e-3, 1e-4}, 1.19, halves)
		put(turned...)
	}
	for _, typ := range []uint32{F32Type, F16Type, BF16Type, Q4_0Type, Q4_1Type, Q5_0Type, Q5_1Type, Q8_0Type, Q2_KType, Q3_KType, Q4_KType,
		Q5_KType,
		Q6_KType, IQ4_NLType, IQ4_XSType, MXFP4Type} {
		elems, size := 1, map[uint32]int{F32Type: 4, F16Type: 2, BF16Type: 2}[typ]
		if size == 0 {
			elems, size = blockShape(typ)
		}
		bytes := 512 / elems * size
		w := make([]byte, 3*bytes)
		for i := range w {
			w[i] = byte(r.Uint32())
		}
		Dequantize(typ, w, out[:512])
		put(out[:512]...)
		got := []float32{1, 2, 3}
		MatVec(typ, w, bytes, x, got, true)
		put(got...)
	}
	for _, opt := range []AttentionOpt{{Scale: 0.125}, {Scale: 0.3, Window: 100, SoftCap: 20}} {
		var keys, values []Row
		for i := range 300 {
			k, v := Row{X: row(64)}, Row{X: row(64)}
			if i%2 == 0 {
				k.Scales, v.Scales = row(2), row(2)
			}
			keys, values = append(keys, k), append(values, v)
		}
		Attention(row(64), keys, values, opt, out[:64])
		put(out[:64]...)
	}
	for _, opt := range []RouteOpt{{}, {Normed: true}, {Sigmoid: true, Normed: true, Bias: y[:40], Scale: 2.5}, {Bias: y[:40]},
		{Normed: true, Scale: 2, Each: y[40:80]}} {
		ids, weights := Choose(x[:40], 5, opt)
		for _, id := range ids {
			put(float32(id))
		}
		JoinExperts(y[:35], weights, out[:7], true)
		put(out[:7]...)
	}
	ClampedSiLUMul(x, y, out)
	put(out...)
	Join([]Part{Sink(0.3, 2), {0.5, 2, []float32{1, 2}}}, out[:2])
	put(out[:2]...)
	AddSiLU(x, out)
	put(out...)
	Blend(x, y, out)
	put(out...)
	AddScaled(x, 0.22, out)
	put(out...)
	SigmoidScale(x[:128], out)
	put(out...)
	for _, pos := range []int32{0, 31, 32, 1000} {
		PositionScale(out, pos, 32, []float32{1, 1.0693147, 1.1098612})
		put(out...)
	}
	GateBy(x, out)
	put(out...)
	delta := Delta{KeyHeads: 2, ValueHeads: 4, Dim: 40, Kernel: 3, Conv: row(320 * 3), A: row(4), Bias: row(4)}
	state := make([]float32, 2*320+4*40*40)
	for range 3 {
		delta.Step(state, row(320), row(4), row(4), out[:160])
		put(out[:160]...)
	}
	put(state...)
	_, values, top, sum := TopK(x, 7)
	put(append(values, top, sum)...)
	if got := hex.EncodeToString(h.Sum(nil)[:16]); got != digests[Version] {
		t.Errorf("the arithmetic of version %d gives %s: want %s", Version, got, digests[Version])
	}
}

package kerneltest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/half"
)

// Scales tells where a block's f16 scales are in a file.
var Scales = map[kernels.Type][]int{
	kernels.F16: {0}, kernels.BF16: {0}, kernels.F32: {0}, kernels.Q8_0: {0}, kernels.Q4_0: {0}, kernels.Q5_0: {0}, kernels.IQ4_NL: {0},
	kernels.Q4_1: {0, 2}, kernels.Q5_1: {0, 2}, kernels.Q4_K: {0, 2}, kernels.Q5_K: {0, 2}, kernels.Q6_K: {208}, kernels.Q2_K: {80, 82},
	kernels.Q3_K: {108}, kernels.IQ4_XS: {0},
}

// half returns the f16 of x.
func putHalf(b []byte, x float32) { binary.LittleEndian.PutUint16(b, half.From(x)) }

// RandomRows returns GGUF bytes of rows·cols weights: any codes, and scales of about 0.01.
func RandomRows(r *rand.Rand, t kernels.Type, rows, cols int) []byte {
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
			putHalf(b[i:], scale())
		case kernels.BF16:
			binary.LittleEndian.PutUint16(b[i:], uint16(math.Float32bits(scale())>>16))
		case kernels.MXFP4:
			b[i] = byte(110 + r.IntN(20))
		default:
			for _, at := range Scales[t] {
				putHalf(b[i+at:], scale())
			}
		}
	}
	return b
}

// hostileRows is RandomRows with scales and weights of every class: zeros, denormals, infinities, NaN.
func hostileRows(r *rand.Rand, t kernels.Type, rows, cols int) []byte {
	b := RandomRows(r, t, rows, cols)
	_, size := t.Block()
	special := []uint16{0, 0x8000, 1, 0x83ff, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e01, 0x0400}
	for i := 0; i < len(b); i += size {
		if t == kernels.MXFP4 && r.IntN(8) == 0 {
			b[i] = []byte{0, 1, 2, 3, 4, 127, 128, 253, 254, 255}[r.IntN(10)] // exponents
		}
		for _, o := range Scales[t] {
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

// RandomFloats returns n normal values; hostile ones include zeros, denormals, extremes, Inf and NaN.
func RandomFloats(r *rand.Rand, n int, hostile bool) []float32 {
	special := []float32{0, float32(math.Copysign(0, -1)), 1e-45, -1e-40, 1e-31, 1e-30, 3e38, -3e38,
		float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}
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

package convert

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// encode writes the blocks of x, whole blocks of finite values, to dst. Errors: a value that the type
// cannot hold.
func encode(t gguf.Type, dst []byte, x []float32) error {
	elems, size := t.Block()
	var block func(dst []byte, x []float32) error
	switch t {
	case gguf.F32:
		return encodeF32(dst, x)
	case gguf.F16:
		return encodeF16(dst, x)
	case gguf.BF16:
		return encodeBF16(dst, x)
	case gguf.Q8_0:
		block = encodeQ8_0
	case gguf.Q4_0:
		block = encodeQ4_0
	case gguf.Q5_0:
		block = encodeQ5_0
	case gguf.Q2_K:
		block = encodeQ2_K
	case gguf.Q3_K:
		block = encodeQ3_K
	case gguf.Q4_K:
		block = encodeQ4_K
	case gguf.Q6_K:
		block = encodeQ6_K
	case gguf.MXFP4:
		block = encodeMXFP4
	default:
		return fmt.Errorf("no encoder for %s", t)
	}
	for ; len(x) > 0; x, dst = x[elems:], dst[size:] {
		if err := block(dst[:size], x[:elems]); err != nil {
			return err
		}
	}
	return nil
}

func encodeF32(dst []byte, x []float32) error {
	for i, v := range x {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
	return nil
}

func encodeF16(dst []byte, x []float32) error {
	for i, v := range x {
		h := half.From(v)
		if h&0x7fff == 0x7c00 {
			return fmt.Errorf("%g is beyond f16, which ends at 65504: want bf16 or f32", v)
		}
		binary.LittleEndian.PutUint16(dst[2*i:], h)
	}
	return nil
}

func encodeBF16(dst []byte, x []float32) error {
	for i, v := range x {
		b := math.Float32bits(v)
		h := (b + 0x7fff + b>>16&1) >> 16 // to nearest, ties to even
		if h&0x7fff == 0x7f80 {
			return fmt.Errorf("%g is beyond bf16: want f32", v)
		}
		binary.LittleEndian.PutUint16(dst[2*i:], uint16(h))
	}
	return nil
}

// putScale writes d as f16 and returns the rounded value.
func putScale(dst []byte, d float32) (float32, error) {
	h := half.From(d)
	if h&0x7fff == 0x7c00 {
		return 0, fmt.Errorf("weights as large as these need a scale of %g, beyond f16, which ends at 65504: want bf16 or f32", d)
	}
	binary.LittleEndian.PutUint16(dst, h)
	return half.Float(h), nil
}

// inverse returns 1/d for a scale d stored as f16; 0 if stored is 0, so that all codes become 0.
func inverse(d, stored float32) float32 {
	if stored == 0 {
		return 0
	}
	return 1 / d
}

// extreme returns the value with the largest magnitude, the first of several.
func extreme(x []float32) float32 {
	var most, at float32
	for _, v := range x {
		if a := float32(math.Abs(float64(v))); a > most {
			most, at = a, v
		}
	}
	return at
}

// The types of 32 values follow ggml's reference (quantize_row_*_ref in ggml-quants.c), down to each
// rounding: same input, same file.

// encodeQ8_0: d = max|x| / 127, codes round(x/d), halves away from zero.
func encodeQ8_0(dst []byte, x []float32) error {
	d := float32(math.Abs(float64(extreme(x)))) / 127
	stored, err := putScale(dst, d)
	if err != nil {
		return err
	}
	inv := inverse(d, stored)
	for i, v := range x {
		q := float64(float32(v * inv)) // the sum below is exact in float64
		dst[2+i] = byte(int8(q + math.Copysign(0.5, q)))
	}
	return nil
}

// encodeQ4_0: d = extreme / -8, so that the extreme value gets code 0 of 0 to 15.
func encodeQ4_0(dst []byte, x []float32) error {
	d := extreme(x) / -8
	stored, err := putScale(dst, d)
	if err != nil {
		return err
	}
	inv := inverse(d, stored)
	for i := range 16 {
		lo := min(15, byte(float32(x[i]*inv)+8.5))
		hi := min(15, byte(float32(x[16+i]*inv)+8.5))
		dst[2+i] = lo | hi<<4
	}
	return nil
}

// encodeQ5_0: as Q4_0 with -16; the fifth bits of all 32 codes lie together.
func encodeQ5_0(dst []byte, x []float32) error {
	d := extreme(x) / -16
	stored, err := putScale(dst, d)
	if err != nil {
		return err
	}
	inv := inverse(d, stored)
	var high uint32
	for i := range 16 {
		lo := min(31, uint32(float32(x[i]*inv)+16.5))
		hi := min(31, uint32(float32(x[16+i]*inv)+16.5))
		high |= lo>>4<<i | hi>>4<<(16+i)
		dst[6+i] = byte(lo&15 | hi&15<<4)
	}
	binary.LittleEndian.PutUint32(dst[2:], high)
	return nil
}

// encodeMXFP4: a block's exponent is that of its largest value less 2, the exponent of 4; codes are the nearest values of E2M1, so the
// largest may be cut to 6 (OCP Microscaling Formats 1.0, section 6.3).
func encodeMXFP4(dst []byte, x []float32) error {
	_, e := math.Frexp(math.Abs(float64(extreme(x)))) // extreme = f·2^e, f from 0.5
	scale := max(0, min(254, e-3+127))
	if extreme(x) == 0 {
		scale = 0
	}
	dst[0] = byte(scale)
	inv := math.Ldexp(1, 127-scale)
	for i := range 16 {
		dst[1+i] = e2m1(float64(x[i])*inv) | e2m1(float64(x[16+i])*inv)<<4
	}
	return nil
}

// e2m1 returns the code of the nearest value, the even one of two: sign, then 0, ½, 1, 1½, 2, 3, 4, 6.
func e2m1(v float64) (code byte) {
	if v < 0 {
		code, v = 8, -v
	}
	n := byte(0)
	for i, between := range [...]float64{0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5} {
		if v > between || v == between && i%2 == 1 {
			n = byte(i + 1)
		}
	}
	return code | n
}

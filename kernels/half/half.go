// Package half converts between float32 and IEEE halves, f16. All rooms may import it.
package half

import "math"

const infinite = 0x7c00 // without the sign

// From rounds x to a half, ties to even; what is too large becomes infinite, NaN stays NaN.
func From(x float32) uint16 {
	b := math.Float32bits(x)
	sign, a := uint16(b>>16)&0x8000, b&0x7fffffff
	switch {
	case a > 0x7f800000: // NaN
		return sign | 0x7e00
	case a >= 0x477ff000: // 65520, the middle between the largest half and 65536
		return sign | infinite
	case a < 0x38800000: // below the smallest normal half, in units of 2^-24, as are floats from 1/2 on
		return sign | uint16(math.Float32bits(math.Float32frombits(a)+0.5)-math.Float32bits(0.5))
	}
	return sign | uint16((a+0xfff+a>>13&1-112<<23)>>13)
}

// Float returns the value of h.
func Float(h uint16) float32 {
	sign, exp, man := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch exp {
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | man<<13)
	case 0:
		return math.Float32frombits(sign | math.Float32bits(float32(man)*0x1p-24))
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}

// Pack rounds x into dst, which is as long. What is too large becomes the largest half, so that all but NaN stays finite.
func Pack(dst []uint16, x []float32) {
	_ = dst[:len(x)]
	for i, v := range x {
		h := From(v)
		if h&^0x8000 == infinite {
			h--
		}
		dst[i] = h
	}
}

// Unpack writes the values of h to dst, which is as long, and reports whether all are finite.
func Unpack(dst []float32, h []uint16) (finite bool) {
	_ = dst[:len(h)]
	finite = true
	for i, v := range h {
		finite = finite && v&infinite != infinite
		dst[i] = Float(v)
	}
	return finite
}

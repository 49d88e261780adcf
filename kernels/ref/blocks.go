package ref

import (
	"encoding/binary"
	"math"

	"github.com/tandem-llm/tandem/kernels/half"
)

// The weight types, numbered as in GGUF files.
const (
	F32Type    = 0
	F16Type    = 1
	Q4_0Type   = 2
	Q4_1Type   = 3
	Q5_0Type   = 6
	Q5_1Type   = 7
	Q8_0Type   = 8
	Q2_KType   = 10
	Q3_KType   = 11
	Q4_KType   = 12
	Q5_KType   = 13
	Q6_KType   = 14
	IQ4_NLType = 20
	IQ4_XSType = 23
	BF16Type   = 30
	MXFP4Type  = 39
)

// subBlock is the unit in which a weight type gives a scale: elements of value scale·code − min. A type whose scales
// are integers times a scale of 256 weights gives them as unit·factor = scale, and its minima as step·level = min.
type subBlock struct {
	scale, min    float32
	unit, step    float32
	factor, level int32
	code          []int32
}

// nonlinear holds the codes that nibbles stand for in IQ4_NL and IQ4_XS; mxfp4 holds twice the values of MXFP4 (E2M1).
var (
	nonlinear = [16]int32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	mxfp4     = [16]int32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

func u16(b []byte, i int) uint16 { return binary.LittleEndian.Uint16(b[i:]) }

func nibble(b byte, high bool) int32 {
	if high {
		return int32(b >> 4)
	}
	return int32(b & 15)
}

// sixBits returns the 6-bit scale and minimum of sub-block s from the 12 bytes that hold eight of each.
func sixBits(q []byte, s int) (scale, min byte) {
	if s < 4 {
		return q[s] & 63, q[s+4] & 63
	}
	return q[s+4]&15 | q[s-4]>>6<<4, q[s+4]>>4 | q[s]>>6<<4
}

// blockShape returns how many elements share a block of a quantised type, and the block's bytes.
func blockShape(typ uint32) (elems, bytes int) {
	switch typ {
	case Q4_0Type, IQ4_NLType:
		return 32, 18
	case Q4_1Type:
		return 32, 20
	case Q5_0Type:
		return 32, 22
	case Q5_1Type:
		return 32, 24
	case Q8_0Type:
		return 32, 34
	case MXFP4Type:
		return 32, 17
	case Q2_KType:
		return 256, 84
	case Q3_KType:
		return 256, 110
	case Q4_KType:
		return 256, 144
	case Q5_KType:
		return 256, 176
	case Q6_KType:
		return 256, 210
	case IQ4_XSType:
		return 256, 136
	}
	panic("ref: not a quantised type")
}

// subBlocks decodes a quantised row of k elements.
func subBlocks(typ uint32, row []byte, k int) []subBlock {
	var all []subBlock
	elems, size := blockShape(typ)
	for ; k > 0; k, row = k-elems, row[size:] {
		if elems == 32 {
			all = append(all, small(typ, row))
			continue
		}
		per := 32
		if typ == Q2_KType || typ == Q3_KType || typ == Q6_KType {
			per = 16
		}
		for s := 0; s < 256/per; s++ {
			b := superScale(typ, row, s)
			b.code = make([]int32, per)
			for i := range b.code {
				b.code[i] = superCode(typ, row, s*per+i)
			}
			all = append(all, b)
		}
	}
	return all
}

// Blocks calls f for each sub-block of a quantised row of k elements, in order: an element is scale·code − min.
func Blocks(typ uint32, row []byte, k int, f func(scale, min float32, codes []int32)) {
	for _, b := range subBlocks(typ, row, k) {
		f(b.scale, b.min, b.code)
	}
}

// small decodes a block of 32.
func small(typ uint32, row []byte) subBlock {
	b := subBlock{code: make([]int32, 32)}
	if typ != MXFP4Type {
		b.scale = half.Float(u16(row, 0))
	}
	var high uint32
	at := 2
	switch typ {
	case Q4_1Type:
		b.min, at = -half.Float(u16(row, 2)), 4
	case Q5_0Type:
		high, at = binary.LittleEndian.Uint32(row[2:]), 6
	case Q5_1Type:
		b.min, high, at = -half.Float(u16(row, 2)), binary.LittleEndian.Uint32(row[4:]), 8
	case MXFP4Type: // a power of two, half of 2^(e-127)
		b.scale, at = float32(math.Ldexp(1, int(row[0])-128)), 1
	}
	for i := range b.code {
		if typ == Q8_0Type {
			b.code[i] = int32(int8(row[at+i]))
			continue
		}
		n := nibble(row[at+i%16], i >= 16) | int32(high>>i&1)<<4
		switch typ {
		case Q4_0Type:
			n -= 8
		case Q5_0Type:
			n -= 16
		case IQ4_NLType:
			n = nonlinear[n]
		case MXFP4Type:
			n = mxfp4[n]
		}
		b.code[i] = n
	}
	return b
}

// superScale returns sub-block s of a block of 256, without its codes.
func superScale(typ uint32, row []byte, s int) (b subBlock) {
	switch typ {
	case Q2_KType:
		b.unit, b.step = half.Float(u16(row, 80)), half.Float(u16(row, 82))
		b.factor, b.level = int32(row[s]&15), int32(row[s]>>4)
	case Q3_KType:
		b.unit = half.Float(u16(row, 108))
		q := row[96:108]
		b.factor = nibble(q[s%8], s >= 8) | int32(q[8+s%4]>>(2*(s/4))&3)<<4
		b.factor -= 32
	case Q4_KType, Q5_KType:
		b.unit, b.step = half.Float(u16(row, 0)), half.Float(u16(row, 2))
		sc, m := sixBits(row[4:16], s)
		b.factor, b.level = int32(sc), int32(m)
	case Q6_KType:
		b.unit, b.factor = half.Float(u16(row, 208)), int32(int8(row[192+s]))
	case IQ4_XSType:
		b.unit = half.Float(u16(row, 0))
		b.factor = nibble(row[4+s/2], s%2 == 1) | int32(u16(row, 2)>>(2*s)&3)<<4
		b.factor -= 32
	}
	b.scale, b.min = b.unit*float32(b.factor), b.step*float32(b.level)
	return b
}

// superCode returns the code of element e of a block of 256.
func superCode(typ uint32, row []byte, e int) int32 {
	half, part, i := e/128, e%128/32, e%32
	switch typ {
	case Q2_KType:
		return int32(row[16+half*32+i] >> (2 * part) & 3)
	case Q3_KType:
		return int32(row[32+half*32+i]>>(2*part)&3) | int32(row[i]>>(4*half+part)&1)<<2 - 4
	case Q4_KType:
		return nibble(row[16+e/64*32+i], e%64 >= 32)
	case Q5_KType:
		return nibble(row[48+e/64*32+i], e%64 >= 32) | int32(row[16+i]>>(e/32)&1)<<4
	case Q6_KType:
		hi := row[128+half*32+i] >> (2 * part) & 3
		return nibble(row[half*64+part%2*32+i], part >= 2) + int32(hi)<<4 - 32
	case IQ4_XSType:
		return nonlinear[nibble(row[8+e/32*16+i%16], i >= 16)]
	}
	panic("ref: not a type of 256")
}

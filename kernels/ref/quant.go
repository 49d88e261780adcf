package ref

import (
	"encoding/binary"
	"math"
)

// The weight types, numbered as in GGUF files.
const (
	F32Type  = 0
	F16Type  = 1
	Q4_0Type = 2
	Q8_0Type = 8
	Q4_KType = 12
	Q6_KType = 14
	BF16Type = 30
)

// Activation is a row quantised for products with quantised weights: per 32 elements one scale, and
// the sums of the codes.
type Activation struct {
	Q     []int8
	Scale []float32 // per 32
	Sum   []int32   // per 16
	XSum  []float32 // per 32: scale · sum
}

// Quantize rounds x, a multiple of 32 long, to int8 codes with a scale of max|x|/127 per 32. A block
// below 1e-30 becomes zeros; one that holds an infinity or NaN gets a NaN scale, so that it stays seen.
func Quantize(x []float32) Activation {
	n := len(x) / 32
	a := Activation{make([]int8, len(x)), make([]float32, n), make([]int32, 2*n), make([]float32, n)}
	for b := 0; b < n; b++ {
		var top uint32
		for _, v := range x[32*b : 32*b+32] {
			top = max(top, math.Float32bits(v)&0x7fffffff)
		}
		largest := math.Float32frombits(top)
		switch {
		case top >= 0x7f800000:
			a.Scale[b] = float32(math.NaN())
		case largest >= 1e-30:
			a.Scale[b] = largest / 127
			inv := 127 / largest
			for i := 32 * b; i < 32*b+32; i++ {
				a.Q[i] = int8(math.RoundToEven(float64(float32(x[i] * inv))))
				a.Sum[i/16] += int32(a.Q[i])
			}
		}
		a.XSum[b] = a.Scale[b] * float32(a.Sum[2*b]+a.Sum[2*b+1])
	}
	return a
}

func u16(b []byte, i int) uint16 { return binary.LittleEndian.Uint16(b[i:]) }

func nibble(b byte, high bool) int32 {
	if high {
		return int32(b >> 4)
	}
	return int32(b & 15)
}

// subBlock is the unit in which a weight type gives a scale: elements of value scale·Code - Min.
type subBlock struct {
	scale, min float32
	code       []int32
}

// q4kScale returns the 6-bit scale and minimum of sub-block s from the 12 bytes that hold eight of each.
func q4kScale(q []byte, s int) (scale, min byte) {
	if s < 4 {
		return q[s] & 63, q[s+4] & 63
	}
	return q[s+4]&15 | q[s-4]>>6<<4, q[s+4]>>4 | q[s]>>6<<4
}

// subBlocks takes a quantised row of k elements apart.
func subBlocks(typ uint32, row []byte, k int) []subBlock {
	var all []subBlock
	switch typ {
	case Q8_0Type:
		for ; k > 0; k, row = k-32, row[34:] {
			b := subBlock{scale: F16(u16(row, 0)), code: make([]int32, 32)}
			for i := range b.code {
				b.code[i] = int32(int8(row[2+i]))
			}
			all = append(all, b)
		}
	case Q4_0Type:
		for ; k > 0; k, row = k-32, row[18:] {
			b := subBlock{scale: F16(u16(row, 0)), code: make([]int32, 32)}
			for i := range b.code {
				b.code[i] = nibble(row[2+i%16], i >= 16) - 8
			}
			all = append(all, b)
		}
	case Q4_KType:
		for ; k > 0; k, row = k-256, row[144:] {
			for s := 0; s < 8; s++ {
				scale, min := q4kScale(row[4:16], s)
				b := subBlock{F16(u16(row, 0)) * float32(scale), F16(u16(row, 2)) * float32(min), make([]int32, 32)}
				for i := range b.code {
					b.code[i] = nibble(row[16+s/2*32+i], s%2 == 1)
				}
				all = append(all, b)
			}
		}
	case Q6_KType:
		for ; k > 0; k, row = k-256, row[210:] {
			for s := 0; s < 16; s++ {
				b := subBlock{scale: F16(u16(row, 208)) * float32(int8(row[192+s])), code: make([]int32, 16)}
				for i := range b.code {
					half, part, at := s/8, s%8/2, s%2*16+i
					hi := row[128+half*32+at] >> (2 * part) & 3
					b.code[i] = nibble(row[half*64+part%2*32+at], part >= 2) + int32(hi)<<4 - 32
				}
				all = append(all, b)
			}
		}
	}
	return all
}

func floatWeight(typ uint32, row []byte, i int) float32 {
	switch typ {
	case F16Type:
		return F16(u16(row, 2*i))
	case BF16Type:
		return BF16(u16(row, 2*i))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
}

func isFloat(typ uint32) bool { return typ == F32Type || typ == F16Type || typ == BF16Type }

// Dequantize writes the k values of a row of GGUF bytes to out. For Q4_K scale·code is exact and the
// minimum's subtraction rounds; for Q6_K the product with the code rounds; for the others nothing does.
func Dequantize(typ uint32, row []byte, out []float32) {
	if isFloat(typ) {
		for i := range out {
			out[i] = floatWeight(typ, row, i)
		}
		return
	}
	i := 0
	for _, b := range subBlocks(typ, row, len(out)) {
		for _, c := range b.code {
			out[i] = float32(b.scale * float32(c))
			if typ == Q4_KType {
				out[i] -= b.min
			}
			i++
		}
	}
}

// MatVec writes the product of each row of w (GGUF bytes, rowBytes each) with x to out, or adds it.
//
// A row is cut into segments of 256 inputs; each starts a new sum at +0, and the sums are added in
// order to a total that starts at +0. Within a segment float weights enter by one FMA per input, and
// quantised ones by one FMA per sub-block: the exact integer sum of code·activation times the product,
// rounded once, of the two scales. A Q4_K sub-block then takes -min times the activation's XSum.
func MatVec(typ uint32, w []byte, rowBytes int, x, out []float32, add bool) {
	var a Activation
	if !isFloat(typ) {
		a = Quantize(x)
	}
	for n := range out {
		row := w[n*rowBytes : (n+1)*rowBytes]
		var total float32
		if isFloat(typ) {
			total = dotFloat(typ, row, x)
		} else {
			total = dotQuantized(typ, subBlocks(typ, row, len(x)), a)
		}
		if add {
			total += out[n]
		}
		out[n] = total
	}
}

func dotFloat(typ uint32, row []byte, x []float32) (total float32) {
	for k := 0; k < len(x); k += 256 {
		var acc float32
		for i := k; i < min(k+256, len(x)); i++ {
			acc = FMA(floatWeight(typ, row, i), x[i], acc)
		}
		total += acc
	}
	return total
}

func dotQuantized(typ uint32, w []subBlock, x Activation) (total float32) {
	var acc float32
	at := 0
	for _, b := range w {
		if at%256 == 0 && at > 0 {
			total += acc
			acc = 0
		}
		var sum int32
		for i, c := range b.code {
			sum += c * int32(x.Q[at+i])
		}
		acc = FMA(float32(sum), float32(b.scale*x.Scale[at/32]), acc)
		if typ == Q4_KType {
			acc = FMA(-b.min, x.XSum[at/32], acc)
		}
		at += len(b.code)
	}
	return total + acc
}

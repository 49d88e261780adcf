package ref

import (
	"encoding/binary"
	"math"

	"github.com/tandem-llm/tandem/kernels/half"
)

// Activation is a row quantised for products with quantised weights: int8 codes with one scale for
// Span of them.
type Activation struct {
	Span  int // 32 or 256
	Q     []int8
	Scale []float32 // per 32, equal within a span
}

// Span returns how many activations share a scale in products with a weight type: 256 for those whose
// own scales are integers times one f16 per 256 (Q2_K to Q6_K), else 32.
func Span(typ uint32) int {
	if typ == Q4_KType || typ == Q5_KType || typ == Q6_KType || whole(typ) {
		return 256
	}
	return 32
}

// whole reports whether the sums of a segment of 256 stay integers to its end.
func whole(typ uint32) bool { return typ == Q2_KType || typ == Q3_KType }

// hasMinima reports whether a weight type has a float minimum for each 32 weights.
func hasMinima(typ uint32) bool { return typ == Q4_1Type || typ == Q5_1Type }

// Quantize rounds x, a multiple of span long, to int8 codes with a scale of max|x|/127 per span. A span
// below 1e-30 becomes zeros; one that holds an infinity or NaN gets a NaN scale, so that the fault is not hidden.
func Quantize(x []float32, span int) Activation {
	a := Activation{span, make([]int8, len(x)), make([]float32, len(x)/32)}
	for from := 0; from < len(x); from += span {
		var top uint32
		for _, v := range x[from : from+span] {
			top = max(top, math.Float32bits(v)&0x7fffffff)
		}
		largest := math.Float32frombits(top)
		var scale float32
		switch {
		case top >= 0x7f800000:
			scale = float32(math.NaN())
		case largest >= 1e-30:
			scale = largest / 127
			inv := 127 / largest
			for i := from; i < from+span; i++ {
				a.Q[i] = int8(math.RoundToEven(float64(float32(x[i] * inv))))
			}
		}
		for b := from / 32; b < (from+span)/32; b++ {
			a.Scale[b] = scale
		}
	}
	return a
}

func floatWeight(typ uint32, row []byte, i int) float32 {
	switch typ {
	case F16Type:
		return half.Float(u16(row, 2*i))
	case BF16Type:
		return BF16(u16(row, 2*i))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
}

func isFloat(typ uint32) bool { return typ == F32Type || typ == F16Type || typ == BF16Type }

// Dequantize writes the k values of a row of GGUF bytes to out: the product of scale and code is rounded
// (it is exact for most types), and so is the minimum's subtraction.
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
			out[i] = float32(b.scale*float32(c)) - b.min
			i++
		}
	}
}

// MatVec writes the product of each row of w (GGUF bytes, rowBytes each) with x to out, or adds it.
//
// A row is cut into segments of 256 inputs; each starts a new sum at +0, and the sums enter, in order, a
// total that starts at +0. Within a segment float weights enter by one FMA per input; quantised ones by
// one FMA per sub-block, of the exact integer sum of code·activation. See dotSmall, dotSuper and dotWhole.
func MatVec(typ uint32, w []byte, rowBytes int, x, out []float32, add bool) {
	var a Activation
	if !isFloat(typ) {
		a = Quantize(x, Span(typ))
	}
	for n := range out {
		row := w[n*rowBytes : (n+1)*rowBytes]
		var total float32
		switch {
		case isFloat(typ):
			total = dotFloat(typ, row, x)
		case whole(typ):
			total = dotWhole(subBlocks(typ, row, len(x)), a)
		case a.Span == 256:
			total = dotSuper(subBlocks(typ, row, len(x)), a)
		default:
			total = dotSmall(subBlocks(typ, row, len(x)), a, hasMinima(typ))
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

// sums returns Σ code·activation and Σ activation of a sub-block that begins at input `at`.
func sums(b subBlock, a Activation, at int) (product, sum int32) {
	for i, c := range b.code {
		product += c * int32(a.Q[at+i])
		sum += int32(a.Q[at+i])
	}
	return product, sum
}

// dotSmall multiplies with activations that have a scale per 32: a sub-block's sum enters times the
// product, rounded once, of the two scales; with minima, then −min times the rounded product of the
// activation's scale and its sum over the sub-block.
func dotSmall(w []subBlock, a Activation, minima bool) (total float32) {
	var acc float32
	at := 0
	for _, b := range w {
		if at%256 == 0 && at > 0 {
			total += acc
			acc = 0
		}
		product, sum := sums(b, a, at)
		scale := a.Scale[at/32]
		acc = FMA(float32(product), float32(b.scale*scale), acc)
		if minima {
			acc = FMA(-b.min, float32(scale*float32(sum)), acc)
		}
		at += len(b.code)
	}
	return total + acc
}

// dotSuper multiplies with activations that have a scale per 256: a sub-block's sum enters times the
// weights' scale; after the last one the exact integer Σ level·sum enters times −step, if the type has
// minima; then the segment enters the total times the activation's scale.
func dotSuper(w []subBlock, a Activation) (total float32) {
	var acc float32
	var minima int32
	at := 0
	for _, b := range w {
		product, sum := sums(b, a, at)
		acc = FMA(float32(product), b.scale, acc)
		minima += b.level * sum
		if at += len(b.code); at%256 == 0 {
			acc = FMA(float32(minima), -b.step, acc)
			total = FMA(acc, a.Scale[at/32-1], total)
			acc, minima = 0, 0
		}
	}
	return total
}

// dotWhole multiplies with activations that have a scale per 256: the exact integer Σ factor·sum of a segment times the
// weights' unit is rounded; the exact integer Σ level·sum enters times −step, if the type has minima; then the segment
// enters the total times the activation's scale.
func dotWhole(w []subBlock, a Activation) (total float32) {
	var products, minima int32
	at := 0
	for _, b := range w {
		product, sum := sums(b, a, at)
		products += b.factor * product
		minima += b.level * sum
		if at += len(b.code); at%256 == 0 {
			acc := FMA(float32(minima), -b.step, float32(float32(products)*b.unit))
			total = FMA(acc, a.Scale[at/32-1], total)
			products, minima = 0, 0
		}
	}
	return total
}

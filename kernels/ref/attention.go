package ref

import "math"

// Block is the number of positions whose attention is computed together, aligned to position 0.
const Block = 256

// AttentionOpt is kernels.AttentionOpt.
type AttentionOpt struct {
	Scale   float32
	Window  int
	SoftCap float32
}

// Row is one position's key or value: F16 elements widened, or the codes of Q8_0 as floats with the scales of
// each 32.
type Row struct{ X, Scales []float32 }

// Attention writes to out what one query head at the last position sees of keys and values, in order of
// absolute position from 0. Where those rows are stored does not matter.
//
// Per block: scores Scale·q·k, the product by FMA in order of dimension (Q8_0: of each 32 dimensions from 0
// on, and these enter in order by FMA with their scale), capped; their largest m (NaN is not
// larger than anything), weights Exp(s-m), their sum in 16 lanes by position mod 16, and Σ weight·v by FMA in
// order of position (Q8_0: the weight times the scale, rounded, and the code). Positions outside the window do not take part, nor do blocks without any other. Then
// the blocks enter in order with weight Exp(m - largest m), by FMA, and the result is divided.
func Attention(q []float32, keys, values []Row, opt AttentionOpt, out []float32) {
	type part struct {
		max, sum float32
		o        []float32
	}
	var parts []part
	top := float32(math.Inf(-1))
	first := 0
	if opt.Window > 0 {
		first = max(0, len(keys)-opt.Window)
	}
	for from := first / Block * Block; from < len(keys); from += Block {
		to := min(from+Block, len(keys))
		p := part{o: make([]float32, len(q))}
		p.max, p.sum = block(q, keys[:to], values[:to], max(from, first), opt, p.o)
		if p.max > top {
			top = p.max
		}
		parts = append(parts, p)
	}
	var sum float32
	clear(out)
	for _, p := range parts {
		c := Exp(p.max - top)
		sum = FMA(c, p.sum, sum)
		for d := range out {
			out[d] = FMA(c, p.o[d], out[d])
		}
	}
	for d := range out {
		out[d] /= sum
	}
}

// block is the part of positions [from, len(keys)).
func block(q []float32, keys, values []Row, from int, opt AttentionOpt, o []float32) (top, sum float32) {
	top = float32(math.Inf(-1))
	s := make([]float32, len(keys))
	for j := from; j < len(keys); j++ {
		s[j] = opt.Scale * dot(q, keys[j])
		if opt.SoftCap != 0 {
			s[j] = SoftCap(s[j], opt.SoftCap)
		}
		if s[j] > top {
			top = s[j]
		}
	}
	var lanes [16]float32
	for j := from; j < len(keys); j++ {
		p, v := Exp(s[j]-top), values[j]
		lanes[j%16] += p
		for d := range o {
			w := p
			if v.Scales != nil {
				w = p * v.Scales[d/32]
			}
			o[d] = FMA(w, v.X[d], o[d])
		}
	}
	return top, Reduce(lanes)
}

func dot(q []float32, k Row) (sum float32) {
	if k.Scales == nil {
		for d, x := range q {
			sum = FMA(x, k.X[d], sum)
		}
		return sum
	}
	for b, scale := range k.Scales {
		var t float32
		for d := 32 * b; d < 32*b+32; d++ {
			t = FMA(q[d], k.X[d], t)
		}
		sum = FMA(scale, t, sum)
	}
	return sum
}

// TopK returns the k best indices of x by (value descending, index ascending), the largest value, and
// Σ Exp(v-max) in 16 lanes. NaN counts as -Inf throughout.
func TopK(x []float32, k int) (ids []int32, values []float32, top, sum float32) {
	low := float32(math.Inf(-1))
	v := make([]float32, len(x))
	top = low
	for i, f := range x {
		if f != f {
			f = low
		}
		v[i] = f
		if f > top {
			top = f
		}
	}
	var lanes [16]float32
	taken := make([]bool, len(x))
	for i, f := range v {
		lanes[i%16] += Exp(f - top)
	}
	for len(ids) < min(k, len(x)) {
		best := -1
		for i, f := range v {
			if !taken[i] && (best < 0 || f > v[best]) {
				best = i
			}
		}
		taken[best] = true
		ids, values = append(ids, int32(best)), append(values, v[best])
	}
	return ids, values, top, Reduce(lanes)
}

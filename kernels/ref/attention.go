package ref

import "math"

// Block is the number of positions whose attention is computed together, aligned to position 0.
const Block = 256

// AttentionOpt is kernels.AttentionOpt, but for Later, which is here the number of keys that come after the query's own.
type AttentionOpt struct {
	Scale   float32
	Window  int
	SoftCap float32
	Later   int
}

// Row is one position's key or value: F16 elements widened, or the codes of Q8_0 as floats with the scales of
// each 32.
type Row struct{ X, Scales []float32 }

// Attention writes to out the attention of one query head at the last position, or Later positions before it, over keys and values, which
// are in order of absolute position from 0.
//
// Per block: scores Scale·q·k, the product by FMA in order of dimension (Q8_0: of each 32 dimensions from 0
// on, and these enter in order by FMA with their scale), capped; their largest m (NaN is not
// larger than anything), weights Exp(s-m), their sum in 16 lanes by position mod 16, and Σ weight·v by FMA in
// order of position (Q8_0: the weight times the scale, rounded, and the code). Positions outside the window are left out, and
// so are blocks wholly outside it. Then the blocks enter in order with weight Exp(m - largest m), by FMA, and the result is divided.
// Parts that are given enter before the blocks: that of a Sink.
func Attention(q []float32, keys, values []Row, opt AttentionOpt, out []float32, parts ...Part) {
	for b := FirstBlock(len(keys), opt); b*Block < len(keys); b++ {
		parts = append(parts, AttendBlock(q, keys, values, b, opt))
	}
	Join(parts, out)
}

// Part is a query head's attention to one block: the largest score, Σ Exp(s-Max), Σ Exp(s-Max)·v.
type Part struct {
	Max, Sum float32
	O        []float32
}

// Sink is the part of a score that has no value, for heads of dim elements.
func Sink(score float32, dim int) Part { return Part{score, 1, make([]float32, dim)} }

// first returns the first of n positions that the query sees.
func first(n int, opt AttentionOpt) int {
	if opt.Window > 0 {
		return max(0, n-opt.Later-opt.Window)
	}
	return 0
}

// FirstBlock returns the block that holds the first of n positions that the query sees.
func FirstBlock(n int, opt AttentionOpt) int { return first(n, opt) / Block }

// AttendBlock returns the part of block b in Attention.
func AttendBlock(q []float32, keys, values []Row, b int, opt AttentionOpt) Part {
	from, to := max(b*Block, first(len(keys), opt)), min((b+1)*Block, len(keys))
	p := Part{Max: float32(math.Inf(-1)), O: make([]float32, len(values[from].X))}
	s := make([]float32, to)
	for j := from; j < to; j++ {
		s[j] = opt.Scale * dot(q, keys[j])
		if opt.SoftCap != 0 {
			s[j] = SoftCap(s[j], opt.SoftCap)
		}
		if s[j] > p.Max {
			p.Max = s[j]
		}
	}
	var lanes [16]float32
	for j := from; j < to; j++ {
		e, v := Exp(s[j]-p.Max), values[j]
		lanes[j%16] += e
		for d := range p.O {
			w := e
			if v.Scales != nil {
				w = e * v.Scales[d/32]
			}
			p.O[d] = FMA(w, v.X[d], p.O[d])
		}
	}
	p.Sum = Reduce(lanes)
	return p
}

// Join writes to out the attention of a row, given the parts of its blocks in order of position.
func Join(parts []Part, out []float32) {
	top := float32(math.Inf(-1))
	for _, p := range parts {
		if p.Max > top {
			top = p.Max
		}
	}
	var sum float32
	clear(out)
	for _, p := range parts {
		c := Exp(p.Max - top)
		sum = FMA(c, p.Sum, sum)
		for d := range out {
			out[d] = FMA(c, p.O[d], out[d])
		}
	}
	for d := range out {
		out[d] /= sum
	}
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

package ref

import "math"

// log1pPoly are 1/17, 1/15 ... 1/3, of the series of atanh.
var log1pPoly = [...]float32{1. / 17, 1. / 15, 1. / 13, 1. / 11, 1. / 9, 1. / 7, 1. / 5, 1. / 3}

// Softplus returns ln(1 + e^x) as max(x, 0) + ln(1 + y) with y = e^-|x|, where ln(1 + y) is 2·atanh(y/(2 + y)).
func Softplus(x float32) float32 {
	y := Exp(-math.Float32frombits(math.Float32bits(x) &^ (1 << 31)))
	s := y / (2 + y)
	z := s * s
	p := log1pPoly[0]
	for _, c := range log1pPoly[1:] {
		p = FMA(p, z, c)
	}
	s += s
	l := FMA(float32(p*z), s, s)
	if x > 0 {
		return x + l
	}
	return l
}

// Sigmoid returns 1 / (1 + e^-x).
func Sigmoid(x float32) float32 { return 1 / (1 + Exp(-x)) }

// GateBy multiplies y by σ(g).
func GateBy(g, y []float32) {
	for i := range y {
		y[i] *= Sigmoid(g[i])
	}
}

// Delta is kernels.DeltaNet: sizes and weights of a gated delta rule behind a causal convolution.
type Delta struct {
	KeyHeads, ValueHeads, Dim, Kernel int
	Conv, A, Bias                     []float32
}

// deltaSegment is how many keys are added up before their sum enters that of all.
const deltaSegment = 32

// Channels returns how many numbers the convolution goes over: queries and keys of the key heads, then values.
func (d *Delta) Channels() int { return (2*d.KeyHeads + d.ValueHeads) * d.Dim }

// Step takes the inputs of one row through state and writes the row's result to out, if that is not nil. The state is the last Kernel-1
// inputs of the convolution, oldest first, and for each value head a matrix M of (key, value).
//
// The convolution is Σ w·x of each channel by FMA from the oldest tap on, and then c / (1 + e^-c). Queries and keys x of a head are
// multiplied by r = 1/√(Σx² + 1e-6), Σx² in 16 lanes, and queries then by 1/√Dim. Per value head, with the query q and the key k of its
// key head, β = σ(beta) and g = e^(A·softplus(alpha + Bias)):
//
//	d = β·fma(-g, kᵀM, v)        M = fma(k, d, g·M)        out = fma(q·k, d, g·qᵀM)
//
// where g·M, g·qᵀM and β·… are rounded, both sums with M are of M as it was, and q·k is in 16 lanes. kᵀM and qᵀM are added up in segments
// of 32 keys, each by FMA from 0, in order; then the segments, in order.
func (d *Delta) Step(state, in, alpha, beta, out []float32) {
	n, dim := d.Channels(), d.Dim
	c := d.convolve(state[:(d.Kernel-1)*n], in)
	k := c[d.KeyHeads*dim : 2*d.KeyHeads*dim]
	v := c[2*d.KeyHeads*dim:]
	scale := 1 / float32(math.Sqrt(float64(dim)))
	for h := range d.KeyHeads {
		unit(c[h*dim:(h+1)*dim], scale)
		unit(k[h*dim:(h+1)*dim], 1)
	}
	for j := range d.ValueHeads {
		h := j % d.KeyHeads
		g, b := Exp(float32(d.A[j]*Softplus(alpha[j]+d.Bias[j]))), Sigmoid(beta[j])
		m := state[(d.Kernel-1)*n+j*dim*dim:][:dim*dim]
		o := make([]float32, dim)
		deltaRule(m, c[h*dim:(h+1)*dim], k[h*dim:(h+1)*dim], v[j*dim:(j+1)*dim], g, b, o)
		if out != nil {
			copy(out[j*dim:], o)
		}
	}
}

// convolve returns the curve of the convolution of in and those before it, and puts in behind them.
func (d *Delta) convolve(before, in []float32) []float32 {
	n := len(in)
	c := make([]float32, n)
	for i := range c {
		w := d.Conv[i*d.Kernel:]
		for j := range d.Kernel - 1 {
			c[i] = FMA(w[j], before[j*n+i], c[i])
		}
		c[i] = FMA(w[d.Kernel-1], in[i], c[i])
		c[i] /= 1 + Exp(-c[i])
	}
	if d.Kernel > 1 {
		copy(before, before[n:])
		copy(before[len(before)-n:], in)
	}
	return c
}

// unit brings x to length 1 and multiplies it by scale.
func unit(x []float32, scale float32) {
	r := 1 / float32(math.Sqrt(float64(Dot(x, x)+1e-6)))
	for i := range x {
		x[i] = float32(x[i]*r) * scale
	}
}

func deltaRule(m, q, k, v []float32, g, beta float32, out []float32) {
	dim, qk := len(q), Dot(q, k)
	for c := range dim {
		d := beta * FMA(-g, column(k, m[c:], dim), v[c])
		out[c] = FMA(qk, d, float32(g*column(q, m[c:], dim)))
		for i := range dim {
			m[i*dim+c] = FMA(k[i], d, float32(g*m[i*dim+c]))
		}
	}
}

// column returns the sum of x and a column, whose elements lie step apart.
func column(x, m []float32, step int) (sum float32) {
	for from := 0; from < len(x); from += deltaSegment {
		var s float32
		for i := from; i < min(from+deltaSegment, len(x)); i++ {
			s = FMA(x[i], m[i*step], s)
		}
		sum += s
	}
	return sum
}

// Package ref defines every operation of tandem's arithmetic in plain Go: the value, and the order of
// every rounding. The kernels of every instruction set give these bits (any NaN equals any other).
//
// All float32 operations round to nearest, ties to even; denormals are kept. Where the compiler could
// fuse a product into a sum, the product is converted explicitly, which forbids it.
package ref

import "math"

// FMA returns a·b + c with one rounding. The product is exact in float64; the sum is rounded to odd
// before it is narrowed, so that narrowing sees on which side of a tie it lies (Boldo and Melquiond,
// "Emulation of FMA and correctly rounded sums", 2008).
func FMA(a, b, c float32) float32 {
	p, z := float64(float64(a)*float64(b)), float64(c)
	s := p + z
	t := s - p
	e := (p - (s - t)) + (z - t)
	u := math.Float64bits(s)
	if e != 0 && u&1 == 0 && u&(0x7ff<<52) != 0x7ff<<52 {
		if (e > 0) == (s > 0) {
			u++
		} else {
			u--
		}
	}
	return float32(math.Float64frombits(u))
}

// BF16 returns the value of a bfloat16.
func BF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// Reduce adds 16 lanes: l with l+8, the sums with those 4, then 2, then 1 further.
func Reduce(a [16]float32) float32 {
	for n := 8; n > 0; n /= 2 {
		for l := 0; l < n; l++ {
			a[l] += a[l+n]
		}
	}
	return a[0]
}

// Dot is the product of two float vectors in 16 lanes: lane i mod 16 takes element i, in order.
func Dot(x, y []float32) float32 {
	var a [16]float32
	for i := range x {
		a[i%16] = FMA(x[i], y[i], a[i%16])
	}
	return Reduce(a)
}

// Constants of Exp: 1/ln 2, ln 2 in two parts, and a polynomial fitted to e^r on |r| ≤ ln2/2.
const (
	expLo    float32 = -87.33655
	expHi    float32 = 88.3
	expLog2e float32 = 0x1.715476p+0
	expLn2Hi float32 = 0x1.63p-1
	expLn2Lo float32 = -0x1.bd0106p-13
)

var expPoly = [...]float32{0x1.6d1116p-10, 0x1.120b7cp-7, 0x1.55551ap-5, 0x1.5554dcp-3, 0x1p-1, 1, 1}

// Exp returns e^x within 2 ulp; below expLo it is 0, above expHi it is Exp(expHi); Exp(0) is 1.
func Exp(x float32) float32 {
	switch {
	case x != x:
		return x
	case x < expLo:
		return 0
	case x > expHi:
		x = expHi
	}
	n := float32(math.RoundToEven(float64(float32(x * expLog2e))))
	r := FMA(-n, expLn2Hi, x)
	r = FMA(-n, expLn2Lo, r)
	p := expPoly[0]
	for _, c := range expPoly[1:] {
		p = FMA(p, r, c)
	}
	return p * math.Float32frombits(uint32(int32(n)+127)<<23)
}

// RMSNorm writes (x·s)·w to y, with s = 1/√(Σx²/n + eps).
func RMSNorm(x, w []float32, eps float32, y []float32) {
	mean := Dot(x, x) / float32(len(x))
	s := 1 / float32(math.Sqrt(float64(mean+eps))) // a float64 root rounds once more without harm: 53 ≥ 2·24+2
	for i := range x {
		y[i] = float32(x[i]*s) * w[i]
	}
}

// SiLUMul writes (g / (1 + e^-g))·u to y.
func SiLUMul(g, u, y []float32) {
	for i := range g {
		y[i] = float32(g[i]/(1+Exp(-g[i]))) * u[i]
	}
}

// PositionScale multiplies x, a row at pos, by factors[pos/every], or by the last factor if there is none for so late a position.
func PositionScale(x []float32, pos int32, every int, factors []float32) {
	f := factors[min(int(pos)/every, len(factors)-1)]
	for i := range x {
		x[i] *= f
	}
}

// AddScaled adds x·factor, rounded, to y.
func AddScaled(x []float32, factor float32, y []float32) {
	for i := range y {
		y[i] += float32(x[i] * factor)
	}
}

// AddSiLU adds g / (1 + e^-g) to y.
func AddSiLU(g, y []float32) {
	for i, x := range g {
		y[i] += x / (1 + Exp(-x))
	}
}

// BlockConv writes Σ_k (base_k + w_k) ∘ rows_k to y, in order from tap 0, with every sum and product rounded. rows are the row itself and
// those before it in its block, nearest first: as many as there are, and at most as many as base has taps. base is (taps, len(y)); w is
// (taps, len(y)/group), a number for each group of columns.
func BlockConv(rows [][]float32, base, w []float32, group int, y []float32) {
	n := len(y)
	for i := range y {
		for k, x := range rows {
			p := float32((base[k*n+i] + w[k*(n/group)+i/group]) * x[i])
			if k == 0 {
				y[i] = p
			} else {
				y[i] += p
			}
		}
	}
}

// Blend moves y towards x by the share s = 1 / (1 + e^-g): y = fma(s, x - y, y).
func Blend(g, x, y []float32) {
	for i := range g {
		y[i] = FMA(1/(1+Exp(-g[i])), x[i]-y[i], y[i])
	}
}

// SigmoidScale multiplies x by s = 1 / (1 + e^-g), rounded: each g scales its share of x, len(x)/len(g) numbers in a row.
func SigmoidScale(g, x []float32) {
	each := len(x) / len(g)
	for i := range x {
		x[i] *= 1 / (1 + Exp(-g[i/each]))
	}
}

// Constants of GELUMul: 2√(2/π), and that times 0.044715.
const (
	geluLinear float32 = 0x1.988454p+0
	geluCubic  float32 = 0x1.2444f2p-4
)

// GELUMul writes gelu(g)·u to y, in the approximation 0.5·g·(1 + tanh(√(2/π)·(g + 0.044715·g³))) of Hendrycks and
// Gimpel (2016), computed as g / (1 + e^-2z), where z is the argument of tanh, so that nothing cancels.
func GELUMul(g, u, y []float32) {
	for i, x := range g {
		z := x * FMA(float32(x*x), geluCubic, geluLinear)
		y[i] = float32(x/(1+Exp(-z))) * u[i]
	}
}

// Constants of Tanh: where the polynomial ends, and its coefficients (Moshier's Cephes, tanhf).
const tanhSmall float32 = 0.625

var tanhPoly = [...]float32{-0x1.75e1d4p-8, 0x1.52269cp-6, -0x1.b83c5ap-5, 0x1.110726p-3, -0x1.555532p-2}

// Tanh returns the hyperbolic tangent within 2 ulp: a polynomial below tanhSmall, else 1 - 2/(e^2|x| + 1).
func Tanh(x float32) float32 {
	a := math.Float32frombits(math.Float32bits(x) &^ (1 << 31))
	t := 1 - 2/(Exp(2*a)+1)
	if a < tanhSmall {
		z := a * a
		p := tanhPoly[0]
		for _, c := range tanhPoly[1:] {
			p = FMA(p, z, c)
		}
		t = FMA(float32(p*z), a, a)
	}
	return math.Float32frombits(math.Float32bits(t)&^(1<<31) | math.Float32bits(x)&(1<<31))
}

// SoftCap returns cap·tanh(x/cap), where x is multiplied by the rounded 1/cap.
func SoftCap(x, cap float32) float32 { return cap * Tanh(float32(x*(1/cap))) }

// NormAdd adds RMSNorm(x) to y.
func NormAdd(x, w []float32, eps float32, y []float32) {
	n := make([]float32, len(x))
	RMSNorm(x, w, eps, n)
	for i := range y {
		y[i] += n[i]
	}
}

// pi/2 in three parts of at most 33 bits, so that n·part is exact for n < 2^20 (Cody and Waite).
const (
	pio2a = 0x1.921fb544p+0
	pio2b = 0x1.0b4611a6p-34
	pio2c = 0x1.3198a2ep-69
)

// Angle returns the cosine and sine of pos·freq, in float64 without fused operations.
func Angle(pos int32, freq float64) (c, s float32) {
	angle := float64(float64(pos) * freq)
	n := math.RoundToEven(float64(angle * 0x1.45f306dc9c883p-1))
	r := angle - float64(n*pio2a)
	r -= float64(n * pio2b)
	r -= float64(n * pio2c)
	z := float64(r * r)
	sn := -1.0 / 39916800.0
	for _, k := range []float64{1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0} {
		sn = float64(sn*z) + k
	}
	sn = r + float64(float64(r*z)*sn)
	cs := 1.0 / 479001600.0
	for _, k := range []float64{-1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5} {
		cs = float64(cs*z) + k
	}
	cs = 1 + float64(z*cs)
	switch int64(n) & 3 {
	case 0:
		return float32(cs), float32(sn)
	case 1:
		return float32(-sn), float32(cs)
	case 2:
		return float32(-cs), float32(-sn)
	}
	return float32(sn), float32(-cs)
}

// RoPE turns x, one head's first 2·len(freq) elements, at pos, with cosine and sine multiplied by
// magnitude. Pairs are (2i, 2i+1), or with halves (i, i+len(freq)).
func RoPE(x []float32, pos int32, freq []float64, magnitude float32, halves bool) {
	for i, f := range freq {
		i0, i1 := 2*i, 2*i+1
		if halves {
			i0, i1 = i, i+len(freq)
		}
		c, s := Angle(pos, f)
		c, s = float32(c*magnitude), float32(s*magnitude)
		x0, x1 := x[i0], x[i1]
		x[i0] = FMA(x0, c, -float32(x1*s))
		x[i1] = FMA(x0, s, float32(x1*c))
	}
}

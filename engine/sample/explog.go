package sample

import "math"

const (
	perOctave = 64
	log2e64   = perOctave * 1.4426950408889634
	step      = 0.6931471805599453 / perOctave
	lnMin     = -87.33654 // below it e^x is not a normal float32
)

// exp returns e^x for x ≤ 0, rounded to float32; 0 if that is not a normal float32. The standard library is not
// used because the result decides which token is drawn and must be the same on every machine; kernels/ref.Exp,
// which imitates fused float32 operations, is too slow for a vocabulary.
// e^x = 2^(n/64) · e^r with |r| ≤ ln 2 / 128: a table, and Taylor's series to degree 3 (its error, r⁴/24 =
// 4e-11, is far below half a float32 ulp). Products are converted explicitly so that no compiler fuses
// them with a sum.
func exp(x float64) float32 {
	if !(x >= lnMin) {
		return 0
	}
	n := int64(float64(x*log2e64) - 0.5) // rounds to nearest: the argument is not positive
	r := x - float64(float64(n)*step)
	p := 1 + r + float64(float64(r*r)*(0.5+float64(r*(1.0/6))))
	octave := math.Float64frombits(uint64(1023+n>>6) << 52)
	return float32(float64(p*powers[n&(perOctave-1)]) * octave)
}

// powers[i] = 2^(i/64). Read only.
var powers = [perOctave]float64{
	1, 0x1.02c9a3e778061p0, 0x1.059b0d3158574p0, 0x1.0874518759bc8p0, 0x1.0b5586cf9890fp0, 0x1.0e3ec32d3d1a2p0, 0x1.11301d0125b51p0,
	0x1.1429aaea92de0p0,
	0x1.172b83c7d517bp0, 0x1.1a35beb6fcb75p0, 0x1.1d4873168b9aap0, 0x1.2063b88628cd6p0, 0x1.2387a6e756238p0, 0x1.26b4565e27cddp0,
	0x1.29e9df51fdee1p0, 0x1.2d285a6e4030bp0,
	0x1.306fe0a31b715p0, 0x1.33c08b26416ffp0, 0x1.371a7373aa9cbp0, 0x1.3a7db34e59ff7p0, 0x1.3dea64c123422p0, 0x1.4160a21f72e2ap0,
	0x1.44e086061892dp0, 0x1.486a2b5c13cd0p0,
	0x1.4bfdad5362a27p0, 0x1.4f9b2769d2ca7p0, 0x1.5342b569d4f82p0, 0x1.56f4736b527dap0, 0x1.5ab07dd485429p0, 0x1.5e76f15ad2148p0,
	0x1.6247eb03a5585p0, 0x1.6623882552225p0,
	0x1.6a09e667f3bcdp0, 0x1.6dfb23c651a2fp0, 0x1.71f75e8ec5f74p0, 0x1.75feb564267c9p0, 0x1.7a11473eb0187p0, 0x1.7e2f336cf4e62p0,
	0x1.82589994cce13p0, 0x1.868d99b4492edp0,
	0x1.8ace5422aa0dbp0, 0x1.8f1ae99157736p0, 0x1.93737b0cdc5e5p0, 0x1.97d829fde4e50p0, 0x1.9c49182a3f090p0, 0x1.a0c667b5de565p0,
	0x1.a5503b23e255dp0, 0x1.a9e6b5579fdbfp0,
	0x1.ae89f995ad3adp0, 0x1.b33a2b84f15fbp0, 0x1.b7f76f2fb5e47p0, 0x1.bcc1e904bc1d2p0, 0x1.c199bdd85529cp0, 0x1.c67f12e57d14bp0,
	0x1.cb720dcef9069p0, 0x1.d072d4a07897cp0,
	0x1.d5818dcfba487p0, 0x1.da9e603db3285p0, 0x1.dfc97337b9b5fp0, 0x1.e502ee78b3ff6p0, 0x1.ea4afa2a490dap0, 0x1.efa1bee615a27p0,
	0x1.f50765b6e4540p0, 0x1.fa7c1819e90d8p0,
}

// log returns the natural logarithm of a finite x ≥ 1, with an error of about 1e-16 of it plus 1e-16. The standard library is
// not used, for the same reason as in exp. log x = k ln 2 + 2 artanh((m-1)/(m+1)) with x = 2^k·m, m within √½ to √2, and
// artanh's series to its 11th term, whose successor is below 2e-19.
func log(x float64) float64 {
	m, k := math.Frexp(x) // exact on every machine; m within ½ to 1
	if m < math.Sqrt2/2 {
		m, k = 2*m, k-1
	}
	return float64(float64(k)*math.Ln2) + float64(2*artanh((m-1)/(m+1)))
}

// artanh returns the inverse hyperbolic tangent of s, |s| ≤ 0.172, by its series.
func artanh(s float64) float64 {
	square, series := float64(s*s), 0.0
	for n := 21; n >= 1; n -= 2 {
		series = float64(series*square) + 1/float64(n)
	}
	return float64(s * series)
}

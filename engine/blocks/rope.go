package blocks

import (
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Rope says how RoPE turns heads, and how its angles differ from position·base^(-2i/n). The arithmetic on it uses only
// +, −, ×, ÷ and exact operations in float64, unfused, so that every machine gets the same bits.
type Rope struct {
	Halves             bool    // pairs elements (i, i+n/2) of a head instead of (2i, 2i+1)
	Base, LocalBase    float64 // LocalBase: of layers with a window, which are not scaled; 0: as the others
	Kind               string  // none, linear, yarn, longrope
	Factor             float64 // by which the context is extended; 1: not extended
	Magnitude          float64 // cosines and sines are multiplied by it
	Original           int     // positions of training before the extension
	BetaFast, BetaSlow float64 // YaRN: a pair with more turns within Original than BetaFast is kept, with less than BetaSlow interpolated
	ExactTurns         bool    // YaRN: the bounds between these pairs are not rounded to whole pairs
}

// Bounds of the factors, from keys or tensors, that divide RoPE's frequencies.
const minRopeFactor, maxRopeFactor = 0.25, 1e6

// A factor from minStill to maxStill makes a pair of elements stand still, in effect: Gemma 4 has 1e30.
const minStill, maxStill = 1e20, 1e31

// Bounds of YaRN's turns, whose logarithms must be finite. Published models have 1 and 32.
const minRopeTurns, maxRopeTurns = 1e-6, 1e6

// RoPE reads c.Rope from the keys below rope; c.Context is known.
func (h *Reader) RoPE(c *Config) { h.rope(c, false, usualMagnitude) }

// LongRoPE is RoPE for an architecture whose files may have a factor for each frequency: Finder.RopeFactors.
func (h *Reader) LongRoPE(c *Config) { h.rope(c, true, usualMagnitude) }

// YaRN is RoPE for an architecture with another magnitude of cosines and sines: where YaRN extends the context by a factor, m, which the
// keys say, becomes magnitude(m, factor).
func (h *Reader) YaRN(c *Config, magnitude func(m, factor float64) float64) {
	h.rope(c, false, magnitude)
}

// usualMagnitude is YaRN's, section 3.4.
func usualMagnitude(m, factor float64) float64 { return m * (1 + float64(0.1*Ln(factor))) }

func (h *Reader) rope(c *Config, factors bool, magnitude func(m, factor float64) float64) {
	if h.Err != nil {
		return
	}
	r := &c.Rope
	r.Base = h.RopeBase("rope.freq_base", 10000)
	kind, err := h.File.StringOr(h.Arch+".rope.scaling.type", "")
	h.Keep(err)
	factor := h.Number("rope.scaling.factor", h.Number("rope.scale_linear", 1))
	r.Factor, r.Magnitude = factor, h.Number("rope.scaling.attn_factor", 1)
	r.Original = h.Count("rope.scaling.original_context_length", c.Context, maxCtx)
	r.BetaFast, r.BetaSlow = h.Number("rope.scaling.yarn_beta_fast", 32), h.Number("rope.scaling.yarn_beta_slow", 1)
	switch r.Kind = kind; kind {
	case "none":
		r.Factor = 1
	case "", "linear": // files older than the key for the type
		r.Kind = "linear"
	case "yarn":
		if factor > 1 {
			r.Magnitude = magnitude(r.Magnitude, factor)
		}
		if r.BetaSlow < minRopeTurns || r.BetaFast < r.BetaSlow || r.BetaFast > maxRopeTurns || r.Base == 1 {
			h.Fail(tandem.Corrupt,
				"yarn rope scaling of base %v, from %v to %v turns: want a base above 1 and %v to %v turns, not fewer as %q",
				r.Base, r.BetaSlow, r.BetaFast, minRopeTurns, maxRopeTurns, h.Arch+".rope.scaling.yarn_beta_fast")
		}
	case "longrope":
		if factor != 1 || !factors {
			h.Fail(tandem.Unsupported,
				"rope scaling %q of the %s architecture with factor %v: tandem runs it for llama and phi3, its factors in tensors",
				kind, h.Arch, factor)
		}
	default:
		h.Fail(tandem.Unsupported, "rope scaling %q: supported are none, linear, yarn and longrope", kind)
	}
	if r.Factor < minRopeFactor || r.Factor > maxRopeFactor || r.Magnitude < 1e-3 || r.Magnitude > 1e3 {
		h.Fail(tandem.Corrupt, "rope scaling by %v with magnitude %v: want a factor from %v to %v and a magnitude from 0.001 to 1000",
			r.Factor, r.Magnitude, minRopeFactor, maxRopeFactor)
	}
}

// RopeBase reads a base of RoPE's frequencies, 1 to 1e15; def stands for a missing key.
func (h *Reader) RopeBase(key string, def float64) float64 {
	base := h.Number(key, def)
	if base < 1 || base > 1e15 {
		h.Fail(tandem.Corrupt, "key %q is %v: want 1 to 1e15", h.Arch+"."+key, base)
	}
	return base
}

// RopeFactors finds the factors that divide RoPE's frequencies. They are Llama 3.1's single table, or one of LongRoPE's two: the long one
// if C.Context, set when the model is loaded, exceeds the training context. still allows factors so large that pairs do not turn.
func (f *Finder) RopeFactors(still bool) {
	const longName, shortName = "rope_factors_long.weight", "rope_factors_short.weight"
	c, w := f.C, f.W
	need := c.Rope.Kind == "longrope" || f.File.Tensor(longName) != nil || f.File.Tensor(shortName) != nil
	w.RopeFactors = f.Vector("rope_freqs.weight", false, c.RopeDim/2)
	long, short := f.Vector(longName, need, c.RopeDim/2), f.Vector(shortName, need, c.RopeDim/2)
	if w.RopeFactors == nil && c.Context > c.Rope.Original {
		w.RopeFactors = long
	} else if w.RopeFactors == nil {
		w.RopeFactors = short
	}
	for i, x := range w.RopeFactors {
		if !(x >= minRopeFactor && x <= maxRopeFactor) && !(still && x >= minStill && x <= maxStill) {
			f.Fail(tandem.Corrupt, "rope factor %d is %v: want %v to %v", i, x, minRopeFactor, maxRopeFactor)
		}
	}
}

// Rotation returns RoPE's rotation for the heads of a layer, local if it has the window. factors divide frequencies one by one; nil: none.
func (c *Config) Rotation(local bool, factors []float32) kernels.Rotation {
	r, n := c.Rope, c.RopeDim
	if local {
		n = c.LocalRopeDim
	}
	if local && r.LocalBase != 0 {
		r, factors = Rope{Halves: r.Halves, Base: r.LocalBase, Kind: "none", Factor: 1, Magnitude: 1}, nil
	}
	freq := InverseFrequencies(r.Base, n, factors)
	var low, high float64
	if r.Kind == "yarn" {
		low, high = r.blend(n)
	}
	for i, f := range freq {
		freq[i] = f / r.Factor
		if r.Kind == "yarn" {
			// Share of the frequency as trained: 1 up to pair low, 0 from pair high on (YaRN, equations 19 to 23).
			keep := 1 - min(1, max(0, (float64(i)-low)/max(0.001, high-low)))
			freq[i] = float64(freq[i]*(1-keep)) + float64(f*keep)
		}
	}
	return kernels.Rotation{InvFreq: freq, Magnitude: float32(r.Magnitude), Halves: r.Halves}
}

// blend returns the pairs between which YaRN passes from trained to interpolated frequencies:
// those that turn betaFast and betaSlow times over the original context, rounded outwards unless ExactTurns.
func (r *Rope) blend(n int) (low, high float64) {
	pair := func(turns float64) float64 {
		return float64(float64(n)*Ln(float64(r.Original)/float64(turns*float64(2*math.Pi)))) / float64(2*Ln(r.Base))
	}
	low, high = pair(r.BetaFast), pair(r.BetaSlow)
	if !r.ExactTurns {
		low, high = math.Floor(low), math.Ceil(high)
	}
	return max(0, low), min(float64(n-1), high)
}

// InverseFrequencies returns base^(-2i/n) for i < n/2, each divided by factors[i] if there are any: the angle
// per position of each rotated pair (RoFormer, section 3.4.2).
func InverseFrequencies(base float64, n int, factors []float32) []float64 {
	half := n / 2
	// Newton's iteration for root^half = base, from above, where it falls monotonically. It starts at
	// 2^whole·(1+part) ≥ 2^((exp-1)/half + 1/half) ≥ base^(1/half), near enough that no power overflows.
	_, exp := math.Frexp(base)
	whole := exp / half
	root := math.Ldexp(1+float64(exp%half)/float64(half), whole)
	for {
		pow := 1.0
		for range half - 1 {
			pow = float64(pow * root)
		}
		next := root - float64(float64(float64(pow*root)-base)/float64(float64(half)*pow))
		if !(next < root) {
			break
		}
		root = next
	}
	inv := make([]float64, half)
	pow := 1.0
	for i := range inv {
		inv[i] = 1 / pow
		if factors != nil {
			inv[i] /= float64(factors[i])
		}
		pow = float64(pow * root)
	}
	return inv
}

// Ln returns the natural logarithm of a normal x > 0 within 1e-15 of itself or of 1: 2·artanh((f-1)/(f+1)) by its
// series, for x = f·2^e with f around 1.
func Ln(x float64) float64 {
	f, e := math.Frexp(x)
	if f < math.Sqrt2/2 {
		f, e = 2*f, e-1
	}
	s := (f - 1) / (f + 1)
	z, sum := float64(s*s), 0.0
	for k := 25; k > 0; k -= 2 {
		sum = float64(sum*z) + 1/float64(k)
	}
	return float64(float64(2*s)*sum) + float64(float64(e)*math.Ln2)
}

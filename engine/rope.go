package engine

import (
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// ropeConfig says how RoPE's angles differ from position·base^(-2i/n). The arithmetic on it uses only
// +, −, ×, ÷ and exact operations in float64, unfused, so that every machine gets the same bits.
type ropeConfig struct {
	base, localBase    float64 // localBase: of layers with a window, which are not scaled; 0: as the others
	kind               string  // none, linear, yarn, longrope
	factor             float64 // by which the context is extended; 1: not extended
	magnitude          float64 // cosines and sines are multiplied by it
	original           int     // positions of training before the extension
	betaFast, betaSlow float64 // YaRN: turns over `original` above and below which a pair is kept or interpolated
}

// Bounds of the factors, from keys or tensors, that divide RoPE's frequencies.
const minRopeFactor, maxRopeFactor = 0.25, 1e6

// A factor from minStill to maxStill makes a pair of elements stand still, in effect: Gemma 4 has 1e30.
const minStill, maxStill = 1e20, 1e31

// Bounds of YaRN's turns, whose logarithms must be finite. Published models have 1 and 32.
const minRopeTurns, maxRopeTurns = 1e-6, 1e6

// readRoPE reads the keys below rope. c.Context and c.RopeDim are known.
func (h *hyper) readRoPE(c *Config) {
	r := &c.rope
	r.base = h.ropeBase("rope.freq_base", 10000)
	if c.traits.localBase != 0 {
		r.localBase = h.ropeBase("rope.freq_base_swa", c.traits.localBase)
	}
	kind, err := h.file.StringOr(h.arch+".rope.scaling.type", "")
	h.keep(err)
	factor := h.number("rope.scaling.factor", h.number("rope.scale_linear", 1))
	r.factor, r.magnitude = factor, h.number("rope.scaling.attn_factor", 1)
	r.original = h.count("rope.scaling.original_context_length", c.Context, maxCtx)
	r.betaFast, r.betaSlow = h.number("rope.scaling.yarn_beta_fast", 32), h.number("rope.scaling.yarn_beta_slow", 1)
	switch r.kind = kind; kind {
	case "none":
		r.factor = 1
	case "", "linear": // files older than the key for the type
		r.kind = "linear"
	case "yarn":
		if factor > 1 && !c.traits.latent {
			r.magnitude *= 1 + float64(0.1*ln(factor))
			r.magnitude /= 1 + float64(float64(0.1*float64(h.multiplier(&c.traits, keyYarnLog, 0)))*ln(factor))
		}
		if r.betaSlow < minRopeTurns || r.betaFast < r.betaSlow || r.betaFast > maxRopeTurns || r.base == 1 {
			h.fail(tandem.Corrupt,
				"yarn rope scaling of base %v, from %v to %v turns: want a base above 1 and %v to %v turns, not fewer as %q",
				r.base, r.betaSlow, r.betaFast, minRopeTurns, maxRopeTurns, h.arch+".rope.scaling.yarn_beta_fast")
		}
	case "longrope":
		if factor != 1 || !c.traits.ropeFactors {
			h.fail(tandem.Unsupported,
				"rope scaling %q of the %s architecture with factor %v: tandem runs it for llama and phi3, its factors in tensors",
				kind, h.arch, factor)
		}
	default:
		h.fail(tandem.Unsupported, "rope scaling %q: supported are none, linear, yarn and longrope", kind)
	}
	if r.factor < minRopeFactor || r.factor > maxRopeFactor || r.magnitude < 1e-3 || r.magnitude > 1e3 {
		h.fail(tandem.Corrupt, "rope scaling by %v with magnitude %v: want a factor from %v to %v and a magnitude from 0.001 to 1000",
			r.factor, r.magnitude, minRopeFactor, maxRopeFactor)
	}
}

func (h *hyper) ropeBase(key string, def float64) float64 {
	base := h.number(key, def)
	if base < 1 || base > 1e15 {
		h.fail(tandem.Corrupt, "key %q is %v: want 1 to 1e15", h.arch+"."+key, base)
	}
	return base
}

// rotation returns RoPE's rotation for the heads of a layer; factors, if not nil, divide its frequencies one by one.
func (c *Config) rotation(local bool, factors []float32) kernels.Rotation {
	r, n := c.rope, c.RopeDim
	if local {
		n = c.localRopeDim
	}
	if local && r.localBase != 0 {
		r, factors = ropeConfig{base: r.localBase, kind: "none", factor: 1, magnitude: 1}, nil
	}
	freq := inverseFrequencies(r.base, n, factors)
	var low, high float64
	if r.kind == "yarn" {
		low, high = r.blend(n, c.traits.exactTurns)
	}
	for i, f := range freq {
		freq[i] = f / r.factor
		if r.kind == "yarn" {
			// Share of the frequency as trained: 1 up to pair low, 0 from pair high on (YaRN, equations 19 to 23).
			keep := 1 - min(1, max(0, (float64(i)-low)/max(0.001, high-low)))
			freq[i] = float64(freq[i]*(1-keep)) + float64(f*keep)
		}
	}
	return kernels.Rotation{InvFreq: freq, Magnitude: float32(r.magnitude), Halves: c.traits.halves}
}

// blend returns the pairs between which YaRN passes from trained to interpolated frequencies:
// those that turn betaFast and betaSlow times over the original context, rounded outwards unless exact.
func (r *ropeConfig) blend(n int, exact bool) (low, high float64) {
	pair := func(turns float64) float64 {
		return float64(float64(n)*ln(float64(r.original)/float64(turns*float64(2*math.Pi)))) / float64(2*ln(r.base))
	}
	low, high = pair(r.betaFast), pair(r.betaSlow)
	if !exact {
		low, high = math.Floor(low), math.Ceil(high)
	}
	return max(0, low), min(float64(n-1), high)
}

// inverseFrequencies returns base^(-2i/n) for i < n/2, each divided by factors[i] if there are any: the angle
// per position of each rotated pair (RoFormer, section 3.4.2).
func inverseFrequencies(base float64, n int, factors []float32) []float64 {
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

// ln returns the natural logarithm of a normal x > 0 within 1e-15 of itself or of 1: 2·artanh((f-1)/(f+1)) by its
// series, for x = f·2^e with f around 1.
func ln(x float64) float64 {
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

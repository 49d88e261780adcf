package sample

import (
	"math"
	"math/bits"

	"github.com/tandem-llm/tandem"
)

// noise is the randomness of one draw: a number for each token, which depends on (seed, position, token) alone. A drafter that knows the
// request's seed knows the noise, so it can guess the target's draw (Daliri, Musco and Suresh, "Coupling without communication and
// drafter-invariant speculative decoding", 2024, arXiv 2408.07978).
type noise uint64

// noiseAt returns the noise of a draw: a block of Philox, keyed by the seed, with the position as counter.
func noiseAt(seed uint64, pos tandem.Position) noise {
	r := philox([4]uint32{uint32(pos)}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	return noise(uint64(r[1])<<32 | uint64(r[0]))
}

// word returns 53 random bits for a token: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
// OOPSLA 2014), begun at the noise.
func (n noise) word(t tandem.Token) uint64 {
	z := uint64(n) + (uint64(t)+1)*0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return (z ^ z>>31) >> 11
}

// gumbel returns a word as a Gumbel variate: -ln E, where E = -ln(1-v) with v = (w|1)/2⁵³ is an exponential variate of mean 1. It is
// between -3.7 and 36.8.
func gumbel(w uint64) float64 {
	v := float64(w|1) * (1.0 / (1 << 53))
	var e float64
	if v < 0.25 {
		e = 2 * artanh(v/(2-v)) // exact to the last bits for small v, where log would see 1
	} else {
		e = log(1 / (1 - v))
	}
	if e < 1 {
		return log(1 / e)
	}
	return -log(e)
}

// most returns a bound that gumbel(w) does not exceed and that is near it. For small words: E is at least v, so -ln E is at most -ln v.
func most(w uint64) float64 {
	if i := w >> boundShift; i > 0 {
		return bounds[i]
	}
	return float64(bits.LeadingZeros64(w|1)-10) * math.Ln2
}

const boundShift = 53 - 8

// bounds[i] is the bound for words that begin with the bits i. Read only.
var bounds = func() (b [256]float64) {
	for i := range b {
		b[i] = gumbel(uint64(i)<<boundShift) + 1e-14 // more than its error
	}
	return b
}()

// few: all words but one in 64 have a bit from this one on, and so at most fewMost as Gumbel variate.
const (
	few     = 47
	fewMost = (53 - few) * math.Ln2
)

// below returns a bound: a logit below it cannot reach that score with a word of which a bit from few on is set.
func below(score, temperature float64) float32 {
	const margin = 1e-6 // of float32, many times over
	b := score - temperature*fewMost
	return float32(b - margin*(math.Abs(score)+math.Abs(b)))
}

// score returns logit v with noise at a temperature; the product is rounded on its own, so that no compiler fuses it with the sum.
func score(v float32, temperature float64, w uint64) float64 {
	return float64(v) + float64(temperature*gumbel(w))
}

// Argmax returns the token with the largest logit, ties to the lowest id. It is never that of a NaN; 0 if all are NaN.
func Argmax(logits []float32) tandem.Token {
	best, at := float32(math.Inf(-1)), -1
	for i, v := range logits {
		if v > best || (at < 0 && v == best) {
			best, at = v, i
		}
	}
	return tandem.Token(max(at, 0))
}

// pick returns the token of ids (nil: all tokens) with the largest logit + temperature · noise, ties to the lowest id, never a NaN; 0
// if there is none. ids holds no NaN.
func (n noise) pick(ids []tandem.Token, logits []float32, temperature float64) tandem.Token {
	at := tandem.Token(0)
	if ids == nil {
		at = Argmax(logits)
	} else if len(ids) > 0 {
		at = ids[0]
		for _, t := range ids {
			if logits[t] > logits[at] {
				at = t
			}
		}
	}
	if int(at) >= len(logits) || logits[at] != logits[at] {
		return at
	}
	best := score(logits[at], temperature, n.word(at)) // the likeliest: few others come near
	low := below(best, temperature)
	try := func(t tandem.Token, v float32, w uint64) {
		if !(float64(v)+float64(temperature*most(w)) >= best) {
			return
		}
		if s := score(v, temperature, w); s > best || s == best && t < at {
			best, at, low = s, t, below(s, temperature)
		}
	}
	for _, t := range ids {
		try(t, logits[t], n.word(t))
	}
	if ids == nil {
		for i, v := range logits {
			if w := n.word(tandem.Token(i)); w>>few == 0 || v >= low { // few are; a NaN never wins
				try(tandem.Token(i), v, w)
			}
		}
	}
	return at
}

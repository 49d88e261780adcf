package sample

import (
	"math"

	"github.com/tandem-llm/tandem"
)

// leastLogProb stands for a probability of 0, as in OpenAI's answers: JSON has no infinity.
const leastLogProb = -9999

// Logprob returns the log-probability of token t, and of the top likeliest tokens, under the softmax of logits
// (vocabulary long). None is below -9999, which also stands for NaN. The result depends on the logits alone and is the
// same on every machine, down to the last bit.
func (s *Sampler) Logprob(logits []float32, t tandem.Token, top int) tandem.Logprob {
	peak := logits[Argmax(logits)]
	sum := 0.0 // ascending by id
	for _, v := range logits {
		switch {
		case v == peak: // an infinite peak minus itself is no number
			sum++
		case v == v:
			sum += float64(exp(float64(v) - float64(peak)))
		}
	}
	scale := log(max(sum, 1))
	of := func(t tandem.Token) float32 {
		d := 0.0
		if v := logits[t]; v != peak {
			d = float64(v) - float64(peak)
		}
		if out := float32(d - scale); out > leastLogProb {
			return out
		}
		return leastLogProb
	}
	out := tandem.Logprob{LogProb: of(t)}
	for _, id := range s.likeliest(logits, top) {
		out.Top = append(out.Top, tandem.TopLogprob{Token: id, LogProb: of(id)})
	}
	return out
}

// likeliest returns the n tokens with the largest logits, largest first, ties to lower ids; never a NaN. It is
// valid until the sampler's next call.
func (s *Sampler) likeliest(logits []float32, n int) []tandem.Token {
	best := s.ids[:0]
	least := float32(math.Inf(-1)) // of the best, once there are n
	for i, v := range logits {
		if n <= 0 || v != v || v <= least && len(best) == n {
			continue
		}
		if len(best) < n {
			best = append(best, 0)
		}
		j := len(best) - 1
		for ; j > 0 && v > logits[best[j-1]]; j-- {
			best[j] = best[j-1]
		}
		best[j] = tandem.Token(i)
		if len(best) == n {
			least = logits[best[n-1]]
		}
	}
	s.ids = best
	return best
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

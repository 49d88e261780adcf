package sample

import (
	"cmp"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Lean returns the candidates for position pos, reordered for a target that draws with this position's noise (see Coupled): likeliest to be
// drawn first, with the log-probabilities that they have given the noise. Tokens that are not in list share the probability that the list
// leaves. At temperature 0 it returns list itself. Only Temperature and Seed of p count.
func Lean(list []tandem.TopLogprob, p tandem.Sampling, pos tandem.Position) []tandem.TopLogprob {
	if p.Temperature == 0 {
		return list
	}
	n, out := noiseAt(p.Seed, pos), make([]tandem.TopLogprob, len(list))
	others, sum := 1.0, 0.0
	for i, c := range list {
		s := score(c.LogProb, p.Temperature, n.word(c.Token))
		others -= math.Exp(float64(c.LogProb))
		sum += math.Exp(s)
		out[i] = tandem.TopLogprob{Token: c.Token, LogProb: float32(s)}
	}
	norm := float32(math.Log(sum + max(others, 0)))
	for i := range out {
		out[i].LogProb = min(out[i].LogProb-norm, 0)
	}
	slices.SortStableFunc(out, func(a, b tandem.TopLogprob) int {
		return cmp.Or(cmp.Compare(b.LogProb, a.LogProb), cmp.Compare(a.Token, b.Token))
	})
	return out
}

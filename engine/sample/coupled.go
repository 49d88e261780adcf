package sample

import (
	"cmp"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Lean returns the candidates in list for a target that draws with the noise of position pos (see Coupled). Those that it is likeliest to
// draw come first, with the log-probabilities that they have given the noise. Tokens that are not in list share the probability that the
// list leaves. At temperature 0 it returns list itself, else a new slice. Only Temperature and Seed of p count.
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

// Coupled returns the k tokens with the largest scores at position pos, largest first, ties to lower ids, and their scores; fewer if there
// are fewer. A score is logit + Temperature · g, where g is the Gumbel noise that Draw uses for the token there. So these are the tokens
// that a target with about these logits is likeliest to draw. Only Temperature and Seed of p count; at temperature 0 scores are the
// logits. NaNs are left out. The slices are valid until the sampler's next call.
func (s *Sampler) Coupled(logits []float32, p tandem.Sampling, pos tandem.Position, k int) ([]tandem.Token, []float32) {
	n := noiseAt(p.Seed, pos)
	ids, scores := s.ids[:0], s.weights[:0]
	low := float32(math.Inf(-1)) // while there are fewer than k
	for i, v := range logits {
		last, x := len(ids)-1, v
		if p.Temperature > 0 {
			w := n.word(tandem.Token(i))
			if w>>few != 0 && v < low || last+1 == k && float64(v)+float64(p.Temperature*most(w)) < float64(scores[last]) {
				continue
			}
			x = float32(score(v, p.Temperature, w))
		}
		switch {
		case x != x || last+1 == k && x <= scores[last]:
			continue
		case last+1 < k:
			ids, scores = append(ids, 0), append(scores, 0)
			last++
		}
		for ; last > 0 && x > scores[last-1]; last-- {
			ids[last], scores[last] = ids[last-1], scores[last-1]
		}
		ids[last], scores[last] = tandem.Token(i), x
		if len(ids) == k {
			low = below(float64(scores[k-1]), p.Temperature)
		}
	}
	s.ids, s.weights = ids, scores
	return ids, scores
}

package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestExtremeValues draws with every value that a request may have at its ends, from logits of all sizes: the token is one of the set that
// the options leave, a temperature next to 0 gives the likeliest token, and no penalty makes a logit that is not finite.
func TestExtremeValues(t *testing.T) {
	const tiny = math.SmallestNonzeroFloat64
	r := rand.New(rand.NewPCG(3, 4))
	var s Sampler
	for _, scale := range []float32{1e-40, 1, 30, 1e20, 1e35} {
		logits := make([]float32, 50)
		for i := range logits {
			logits[i] = scale * float32(r.NormFloat64())
		}
		for _, repeat := range []float64{0, tandem.MinRepeat, 1, tandem.MaxRepeat} {
			for _, p := range []tandem.Sampling{{}, {FrequencyPenalty: 2, PresencePenalty: 2}, {FrequencyPenalty: -2, PresencePenalty: -2},
				{FrequencyPenalty: tiny, PresencePenalty: -tiny}} {
				p.RepeatPenalty, p.RepeatLast = repeat, 4
				h := NewHistory(p, []tandem.Token{1, 2, 3, 3, 3, 7}, 2)
				shaped := slices.Clone(s.Shape(logits, p, h))
				for i, v := range shaped {
					if math.IsInf(float64(v), 0) || v != v {
						t.Fatalf("%+v makes logit %v of %v", p, v, logits[i])
					}
				}
				for _, temperature := range []float64{tiny, 1e-39, 1e-3, 1, tandem.MaxTemperature} {
					for _, topP := range []float64{tiny, 1e-39, 0.5, 1} {
						for _, minP := range []float64{0, tiny, 1e-39, 1} {
							for _, topK := range []int{0, 1, math.MaxInt32} {
								p.Temperature, p.TopP, p.MinP, p.TopK, p.Seed = temperature, topP, minP, topK, r.Uint64()
								got := s.Draw(shaped, p, 9)
								set := s.Distribution(shaped, p)
								if !slices.ContainsFunc(set, func(x Prob) bool { return x.Token == got && x.P > 0 }) {
									t.Fatalf("%+v draws %d: want one of %v", p, got, set)
								}
								if best := Argmax(shaped); temperature <= 1e-39 && scale >= 1 && got != best {
									t.Fatalf("%+v draws %d: want %d", p, got, best)
								}
							}
						}
					}
				}
			}
		}
	}
}

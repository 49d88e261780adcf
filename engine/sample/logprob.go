package sample

import (
	"github.com/tandem-llm/tandem"
)

// leastLogProb stands for a probability of 0, as in OpenAI's answers: JSON has no infinity.
const leastLogProb = -9999

// Logprob returns the log-probabilities of token t and of the top likeliest tokens, under the softmax of logits: (vocabulary). None is
// below -9999, which also stands for NaN. The result depends on the logits alone and is the same on every machine, down to the last bit.
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

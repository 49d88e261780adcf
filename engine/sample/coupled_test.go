package sample

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestLean: who knows the target's probabilities guesses what it draws; who knows them about right is more often right than without noise,
// and no surer than that.
func TestLean(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var s Sampler
	const rounds, vocab = 2000, 16
	plain, leaning, said := 0, 0, 0.0
	for i := range rounds {
		p := tandem.Sampling{Temperature: 0.8, TopP: 1, Seed: uint64(i % 7)}
		pos := tandem.Position(i)
		logits := make([]float32, vocab)
		exact, about := make([]tandem.TopLogprob, vocab), make([]tandem.TopLogprob, vocab)
		for id := range logits {
			logits[id] = float32(2 * r.NormFloat64())
			exact[id] = tandem.TopLogprob{Token: tandem.Token(id), LogProb: logits[id]}
			about[id] = tandem.TopLogprob{Token: tandem.Token(id), LogProb: logits[id] + float32(0.5*r.NormFloat64())}
		}
		normalise(exact)
		normalise(about)
		drawn := s.Draw(logits, p, pos)
		if got := Lean(exact, p, pos)[0].Token; got != drawn {
			t.Fatalf("round %d: leans to %d, drawn is %d", i, got, drawn)
		}
		lean := Lean(about, p, pos)
		if lean[0].Token == drawn {
			leaning++
		}
		best := about[0]
		for _, c := range about {
			if c.LogProb > best.LogProb {
				best = c
			}
		}
		if best.Token == drawn {
			plain++
		}
		total := 0.0
		for j, c := range lean {
			if total += math.Exp(float64(c.LogProb)); j > 0 && c.LogProb > lean[j-1].LogProb || c.LogProb > 0 {
				t.Fatalf("round %d: candidates %v", i, lean)
			}
		}
		if total > 1+1e-4 {
			t.Fatalf("round %d: chances add up to %v", i, total)
		}
		said += math.Exp(float64(lean[0].LogProb))
	}
	t.Logf("of %d draws: %d right without noise, %d with, said %.0f", rounds, plain, leaning, said)
	if leaning < plain*13/10 || said > float64(leaning) {
		t.Errorf("of %d draws: %d right without noise, %d with, said %.0f", rounds, plain, leaning, said)
	}
	list := []tandem.TopLogprob{{Token: 3, LogProb: -1}, {Token: 1, LogProb: -2}}
	if got := Lean(list, tandem.Sampling{TopP: 1}, 5); &got[0] != &list[0] {
		t.Errorf("at temperature 0: %v", got)
	}
}

func normalise(list []tandem.TopLogprob) {
	sum := 0.0
	for _, c := range list {
		sum += math.Exp(float64(c.LogProb))
	}
	for i := range list {
		list[i].LogProb -= float32(math.Log(sum))
	}
}

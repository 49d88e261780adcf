package drafter

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestPays: sessions draft ahead in most rounds where rounds ahead bring more tokens per second, and in hardly any where they bring
// fewer, or where there are no hits. A change is noticed.
func TestPays(t *testing.T) {
	const rounds = 3000
	random := rand.New(rand.NewPCG(1, 1))
	p := newPays(true)
	// run returns the share of rounds ahead, in the second half, if these take so long and bring so many tokens as those in turn.
	run := func(longer, more, hits float64) float64 {
		ahead := 0
		for i := range rounds {
			is := p.next(4)
			took, tokens := 50*time.Millisecond, 2.2
			if is {
				took, tokens = time.Duration(longer*float64(took)), more*tokens
				p.tried(random.Float64() < hits)
				if i > rounds/2 {
					ahead++
				}
			}
			if i%100 == 99 {
				took = time.Minute // a client was slow
			}
			n := int(tokens)
			if random.Float64() < tokens-float64(n) {
				n++
			}
			p.learn(is, n, took)
		}
		return float64(ahead) / rounds * 2
	}
	for _, c := range []struct{ longer, more, hits, least, most float64 }{
		{0.85, 0.98, 0.4, 0.8, 0.9}, {0.95, 0.8, 0.4, 0, 0.1}, {1.2, 1, 0.1, 0, 0.1}, {0.8, 0.95, 0.5, 0.8, 0.9}, {0.9, 1, 0, 0, 0.1},
	} {
		if got := run(c.longer, c.more, c.hits); got < c.least || got > c.most {
			t.Errorf("rounds ahead of %.2f of the time, %.2f of the tokens and %.1f hits: %.3f of rounds are ahead, want %v to %v",
				c.longer, c.more, c.hits, got, c.least, c.most)
		}
	}
}

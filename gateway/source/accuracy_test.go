package source

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestAccuracies: corrections begin with what was measured, each kind of sampling with its own, and follow the guesses.
func TestAccuracies(t *testing.T) {
	way := tandem.SelfDraft{Name: tandem.Medusa, Levels: 2}
	for k := range way.Levels {
		way.Greedy[k] = tandem.Line{Slope: 1, Bias: 2}
	}
	var a accuracies
	said := tandem.Guess{SelfDraft: way.Name, Levels: [][]tandem.TopLogprob{{{Token: 1, LogProb: float32(math.Log(0.5))}},
		{{Token: 2, LogProb: float32(math.Log(0.5))}}}}
	chance := func(w tandem.SelfDraft, sampled bool, level int) float64 {
		return a.table(w, sampled).Corrected(said)(level, 0, 0)
	}
	measured := 1 / (1 + math.Exp(-2))
	if got := chance(way, false, 0); math.Abs(got-measured) > 0.01 {
		t.Errorf("chance %v at first: want %v, as measured", got, measured)
	}
	if got := chance(way, true, 0); math.Abs(got-0.5) > 0.01 {
		t.Errorf("chance %v where nothing was measured: want what the way says, 0.5", got)
	}
	draw := rand.New(rand.NewPCG(1, 1))
	for range 2000 { // level 0 is right in one of ten places, level 1 then in nine
		next := []tandem.Token{9, 9}
		if draw.Float64() < 0.1 {
			next[0] = 1
		}
		if draw.Float64() < 0.9 {
			next[1] = 2
		}
		a.learn(way, false, said, next)
	}
	if got := chance(way, false, 0); math.Abs(got-0.1) > 0.09 {
		t.Errorf("chance %v of level 0 after guesses that were right in 0.1", got)
	}
	if got := chance(way, false, 1); math.Abs(got-0.9) > 0.08 {
		t.Errorf("chance %v of level 1 after guesses that were right in 0.9", got)
	}
	other := way
	other.Levels = 1
	if got := chance(other, false, 0); math.Abs(got-measured) > 0.01 {
		t.Errorf("chance %v of another side file: want %v", got, measured)
	}
}

package spec

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestCopies: a long match is trusted for a long draft at once. Two tokens that agree are not, once they have misled in this text, and what
// they have misled does not count against long matches.
func TestCopies(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	a := NewAutomaton()
	passage := make([]tandem.Token, 120)
	for i := range passage {
		passage[i] = tandem.Token(1000 + i)
	}
	a.Append(passage...)
	var prose []tandem.Token // pairs of words that come again and again, each time with something else behind them
	for range 40 {
		pair := tandem.Token(r.IntN(6))
		prose = append(prose, pair, 10+pair, tandem.Token(100+r.IntN(800)))
	}
	for _, token := range prose {
		a.Learn(token)
		a.Append(token)
	}
	chance := func(wide int) float64 { // of the likeliest path
		tree := a.Continue(tandem.Bounds{Nodes: wide + 1, Depth: wide, Width: 1})
		return math.Exp(float64(tree.LogProbs[tree.Len()-1]))
	}
	pair := prose[len(prose)-3]
	a.Append(pair, 10+pair)
	if p := chance(1); p > 0.25 {
		t.Errorf("two tokens that agreed and misled forty times promise %.2f", p)
	}
	for _, token := range passage[:30] {
		a.Append(token) // the target copies
	}
	if p := chance(15); p < 0.7 {
		t.Errorf("after thirty tokens of a copy the next fifteen have a chance of %.2f", p)
	}
	fresh := NewAutomaton()
	fresh.Append(1, 2, 3, 4, 1, 2)
	once, short := fresh.copies.chance(false, followedOnce, 2), fresh.copies.chance(true, followedOnce, 2)
	if long := fresh.copies.chance(false, followedOnce, 40); once > 0.6 || long < 0.97 || short > 0.3 {
		t.Errorf("usual chances: %.2f for two tokens, %.2f for forty, %.2f if a longer match was wrong", once, long, short)
	}
}

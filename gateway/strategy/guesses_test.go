package strategy

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// wayRound plays a round of a planner for a session whose target guesses by itself: pass is the time of a pass, heads that of a guess, and
// hits how many of its tokens are right.
type wayRound struct {
	p       *planner
	base    tandem.Position
	guessed bool // a guess came with the last verdict
	asked   int
	used    int
}

func (w *wayRound) play(pass, heads time.Duration, hits int) {
	ready := []string{"lookup"}
	if w.guessed {
		ready = []string{tandem.Medusa, "lookup"}
	}
	d := w.p.Decide(ready, tandem.Bounds{Nodes: 16, Depth: 8, Width: 4})
	asks := w.p.Guesses([]string{tandem.Medusa})
	w.base++
	right := make([]tandem.Token, hits+1)
	tree := tandem.Root(0)
	tree.LogProbs = []float32{0}
	for i := range hits {
		right[i] = tandem.Token(i + 1)
		tree.Tokens, tree.Parents = append(tree.Tokens, right[i]), append(tree.Parents, int32(i))
		tree.LogProbs = append(tree.LogProbs, -0.1*float32(i+1))
	}
	own := Draft{Drafter: tandem.Medusa, Got: tandem.Proposed{Nodes: tree.Len(), Depth: hits, Busy: heads, Tree: tree}}
	o := &Outcome{Decision: d, Tokens: 1, Wall: pass, Rest: pass / 50,
		Verdict: tandem.Verdict{Base: w.base, Nodes: 1, Rows: 1, Batch: 1, Tokens: []tandem.Token{9}, Busy: pass}}
	uses := slices.ContainsFunc(d.Asks, func(k Ask) bool { return k.Drafter == tandem.Medusa })
	switch {
	case uses:
		w.used++
		o.Verdict.Tokens, o.Verdict.Nodes, o.Verdict.Rows = right, tree.Len(), tree.Len()
		o.Tokens, o.Tree, o.Judged, o.Drafts = len(right), tree, true, []Draft{own}
		o.Wall += heads
	case w.guessed:
		o.Idle = []Draft{own}
		if hits > 0 {
			o.Verdict.Tokens = right[:1] // the target said what the way would have
		}
	}
	for _, k := range d.Asks {
		if k.Drafter == "lookup" {
			o.Drafts = append(o.Drafts, Draft{Drafter: "lookup", Got: tandem.Proposed{Nodes: 1, Busy: 1, Tree: tandem.Root(0)}})
		}
	}
	if w.guessed = len(asks) > 0; w.guessed {
		w.asked++
	}
	w.p.Learn(o)
}

func newWayRound() *wayRound {
	rules, _ := Rules{}.WithDefaults()
	shared := NewShared(rules)
	shared.Measured("", []tandem.Cost{{Rows: 1, Time: 40e6}, {Rows: 16, Time: 42e6}})
	return &wayRound{p: plannerOf(shared, tandem.VoteTree, true, true, 0, 1000), base: 10}
}

// TestPlannerAsksForGuesses: good guesses are asked for in nearly every round and used; bad ones are hardly asked for, and a way that
// becomes good is found out.
func TestPlannerAsksForGuesses(t *testing.T) {
	w := newWayRound()
	for range 100 {
		w.play(40*time.Millisecond, 2*time.Millisecond, 4)
	}
	first := w.used
	for range 100 {
		w.play(40*time.Millisecond, 2*time.Millisecond, 4)
	}
	if first < 70 || w.used-first < 95 {
		t.Errorf("good guesses: asked %d times, used %d times in 100 rounds, %d times in the next", w.asked, first, w.used-first)
	}
	w = newWayRound()
	const rounds = 300
	for range rounds {
		w.play(40*time.Millisecond, 4*time.Millisecond, 0)
	}
	if took := time.Duration(w.asked) * 4 * time.Millisecond; took > rounds*40*time.Millisecond*3/100 {
		t.Errorf("bad guesses: asked %d times in %d rounds; %v for nothing", w.asked, rounds, took)
	}
	used := w.used
	for range 200 {
		w.play(40*time.Millisecond, 4*time.Millisecond, 4)
	}
	if w.used-used < 100 {
		t.Errorf("of guesses that have become good %d were used in 200 rounds", w.used-used)
	}
}

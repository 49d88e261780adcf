package source

import (
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/shape"
)

const (
	// accuracyFade is the factor on what is known of a self-draft's probabilities with each later guess: some 1,000 guesses are remembered.
	accuracyFade = 0.999
	// accuracyEvery is after how many guesses the corrections are fitted anew.
	accuracyEvery = 16
)

// accuracies holds, for all sessions of a gateway, what corrects the probabilities of the target's self-drafts. It begins with what was
// measured on calibration text, and learns from every guess whose tokens have become known. Safe for concurrent use.
type accuracies struct {
	mu sync.Mutex
	of map[accuracyKey]*accuracy
}

// accuracyKey tells apart what differs: a self-draft, and whether the target samples.
type accuracyKey struct {
	name    string
	sampled bool
}

type accuracy struct {
	draft  tandem.SelfDraft
	counts *shape.Counts
	table  *shape.Accuracy // the lines of counts alone; replaced, never changed
	fresh  int             // guesses since it was made
}

// begin returns what is known of a self-draft. a.mu must be held.
func (a *accuracies) begin(d tandem.SelfDraft, sampled bool) *accuracy {
	key := accuracyKey{d.Name, sampled}
	if x := a.of[key]; x != nil && x.draft == d {
		return x
	}
	counts, err := shape.NewCounts(d.Levels, tandem.MostCandidates)
	if err != nil {
		panic("source: " + err.Error()) // d is valid
	}
	lines := d.Greedy
	if sampled {
		lines = d.Sampled
	}
	counts.Believe(lines[:])
	x := &accuracy{draft: d, counts: counts, table: &shape.Accuracy{Own: counts.Lines()}}
	if a.of == nil {
		a.of = map[accuracyKey]*accuracy{}
	}
	a.of[key] = x
	return x
}

// table returns what corrects a self-draft's probabilities now; see shape.Accuracy.Corrected.
func (a *accuracies) table(d tandem.SelfDraft, sampled bool) *shape.Accuracy {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.begin(d, sampled).table
}

// learn takes a guess and the tokens that came, as many as it has levels.
func (a *accuracies) learn(d tandem.SelfDraft, sampled bool, g tandem.Guess, next []tandem.Token) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.begin(d, sampled)
	x.counts.Fade(accuracyFade)
	x.counts.Add(shape.Look(g, next))
	if x.fresh++; x.fresh >= accuracyEvery {
		x.table, x.fresh = &shape.Accuracy{Own: x.counts.Lines()}, 0
	}
}

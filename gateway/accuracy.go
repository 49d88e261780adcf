package gateway

import (
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/shape"
)

const (
	// accuracyFade is the factor on what is known of a way's probabilities with each later guess: some 1,000 guesses are remembered.
	accuracyFade = 0.999
	// accuracyEvery is after how many guesses the corrections are fitted anew.
	accuracyEvery = 16
)

// accuracies holds, for all sessions of a gateway, what corrects the probabilities of the target's own ways. It begins with what was
// measured on calibration text, and learns from every guess whose tokens have become known. Safe for concurrent use.
type accuracies struct {
	mu sync.Mutex
	of map[accuracyKey]*accuracy
}

// accuracyKey tells apart what differs: a way, and whether the target samples.
type accuracyKey struct {
	way     string
	sampled bool
}

type accuracy struct {
	way    tandem.SelfDraft
	counts *shape.Counts
	table  *shape.Accuracy // the lines of counts alone; replaced, never changed
	fresh  int             // guesses since it was made
}

// begin returns what is known of a way. a.mu must be held.
func (a *accuracies) begin(w tandem.SelfDraft, sampled bool) *accuracy {
	key := accuracyKey{w.Name, sampled}
	if x := a.of[key]; x != nil && x.way == w {
		return x
	}
	counts, err := shape.NewCounts(w.Levels, tandem.MostCandidates)
	if err != nil {
		panic("gateway: " + err.Error()) // w is valid
	}
	lines := w.Greedy
	if sampled {
		lines = w.Sampled
	}
	counts.Believe(lines[:])
	x := &accuracy{way: w, counts: counts, table: &shape.Accuracy{Own: counts.Lines()}}
	if a.of == nil {
		a.of = map[accuracyKey]*accuracy{}
	}
	a.of[key] = x
	return x
}

// table returns what corrects a way's probabilities now; see shape.Accuracy.Corrected.
func (a *accuracies) table(w tandem.SelfDraft, sampled bool) *shape.Accuracy {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.begin(w, sampled).table
}

// learn takes a guess and the tokens that came, as many as it has levels.
func (a *accuracies) learn(w tandem.SelfDraft, sampled bool, g tandem.Guess, next []tandem.Token) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.begin(w, sampled)
	x.counts.Fade(accuracyFade)
	x.counts.Add(shape.Look(g, next))
	if x.fresh++; x.fresh >= accuracyEvery {
		x.table, x.fresh = &shape.Accuracy{Own: x.counts.Lines()}, 0
	}
}

// early is a guess whose tokens are not all known yet. Sampling only those of its levels that its round has decided would count the deeper
// ones in easy places alone.
type early struct {
	of *liaison
	g  tandem.Guess
	at int // committed tokens before its first level
}

// compare learns from guesses whose tokens are known by now, and remembers those of this round.
func (s *session) compare(before int) {
	sampled := s.req.Sampling.Temperature > 0
	for _, l := range s.liaisons {
		if l.guess != nil {
			s.early = append(s.early, early{l, l.guess.of, before})
		}
	}
	rest := s.early[:0]
	for _, e := range s.early {
		if end := e.at + len(e.g.Levels); end <= len(s.tokens) {
			s.g.accuracies.learn(*e.of.of.Way, sampled, e.g, s.tokens[e.at:end])
		} else {
			rest = append(rest, e)
		}
	}
	s.early = rest
}

package strategy

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
)

// worth says which drafters are worth opening a session at. To open one costs something even if it never drafts: it reads the prompt, and
// one that reads the target's states also those; guesses take time after every pass; and each choice more is one to be wrong about.
// Shared's lock protects it.
type worth struct {
	t     learn.OpeningTuning
	pass  map[string]time.Duration // running mean of a drafter's pass
	known map[string]*judgement    // by drafter and kind of session; see subject
}

// judgement is what sessions have found out about a drafter.
type judgement struct {
	rounds int     // that were seen
	gain   float64 // running mean over them; a session in which it brought nothing counts as 0
	wait   int     // rounds of sessions without it before it is looked at again
	left   int     // of them
}

// use sums up a session's choices with and without a drafter.
type use struct {
	rounds int
	gains  float64
}

func newWorth(t learn.OpeningTuning) worth {
	return worth{t: t, pass: map[string]time.Duration{}, known: map[string]*judgement{}}
}

// subject is the name under which a drafter is judged: what it is worth when sampling says little about greedy decoding.
func subject(drafter string, sampled bool) string {
	if sampled {
		return drafter + " sampled"
	}
	return drafter
}

// learn takes what a session has found out, in so many rounds, and which drafters it did without.
func (w *worth) learn(uses map[string]*use, without []string, rounds int) {
	if len(w.known) > 2*mostNames || len(w.pass) > mostNames {
		*w = newWorth(w.t) // names that came and went
	}
	for of, u := range uses {
		v := w.known[of]
		if v == nil {
			v = &judgement{wait: w.t.First, left: w.t.First}
			w.known[of] = v
		}
		v.rounds = min(v.rounds+u.rounds, w.t.Past)
		v.gain += (max(u.gains/float64(u.rounds), 0) - v.gain) * min(float64(u.rounds)/float64(v.rounds), 1)
		if v.gain >= w.t.Gain {
			v.wait, v.left = w.t.First, w.t.First
		}
	}
	for _, of := range without {
		if v := w.known[of]; v != nil {
			v.left -= rounds
		}
	}
}

// count notes what the latest choice promised with and without each of the drafters that were ready. A drafter that alone may draft is
// compared with no other, and shows nothing.
func (p *planner) count(ready []string) {
	p.chosen++
	if len(ready) < 2 {
		return
	}
	for _, d := range ready {
		gain, known := p.choices.Gain(d)
		if !known {
			continue
		}
		of := subject(d, p.sampled)
		if p.uses[of] == nil {
			p.uses[of] = &use{}
		}
		p.uses[of].rounds++
		p.uses[of].gains += gain
	}
}

// passed notes the time of a drafter's passes.
func (l *Shared) passed(drafter string, got tandem.Proposed) {
	if got.Passes < 1 || got.Busy <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.worth.pass[drafter] = learn.Mean(l.worth.pass[drafter], got.Busy/time.Duration(got.Passes))
}

// Opens implements Strategy.
func (p *planner) Opens(drafter string) bool {
	l := p.shared
	l.mu.Lock()
	defer l.mu.Unlock()
	of := subject(drafter, p.sampled)
	v := l.worth.known[of]
	if v == nil || v.rounds < l.worth.t.Judged || v.gain >= l.worth.t.Gain || l.cheap(drafter) {
		return true
	}
	if v.left > 0 {
		p.without = append(p.without, of)
		return false
	}
	v.wait = min(2*v.wait, l.worth.t.Most) // this session looks at it again; others need not
	v.left = v.wait
	return true
}

// cheap reports whether a drafter costs next to nothing. l.mu is locked.
func (l *Shared) cheap(drafter string) bool {
	if isSelfDraft(drafter) {
		return float64(l.prices[drafter]) < l.rules.Tuning.Choice.Free*float64(l.round)
	}
	return float64(l.worth.pass[drafter]) < l.worth.t.Free*float64(l.costs.Time(1))
}

package strategy

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
)

const (
	// openFree is how long a drafter's pass may take, as a share of the target's, so that every session opens it: to read a prompt takes it
	// that share of the time that the target takes.
	openFree = 0.05
	// openUsed is the share of a session's rounds in which the best choice has a drafter, so that later sessions open it.
	openUsed = 0.1
	// openShare bounds the time in which drafters read prompts that hardly used, as a share of that of all rounds.
	openShare = 0.01
	// openSaved is the most of such time that is saved up.
	openSaved = 2 * time.Second
	// leastUse is how many rounds a drafter must have been ready in a session so that the session judges it.
	leastUse = 4
)

// worth says which drafters are worth opening a session at. To open one costs something even if it never drafts: it reads the prompt, and
// one that reads the target's states also those. Shared's lock protects it.
type worth struct {
	pass  map[string]time.Duration // running mean of a drafter's pass
	used  map[string]float64       // share of the rounds of the latest sessions whose best choice had it
	saved time.Duration            // time for drafters that were hardly used
}

// use counts a session's rounds in which a drafter was ready, and those whose best choice had it.
type use struct{ ready, used int }

func newWorth() worth { return worth{pass: map[string]time.Duration{}, used: map[string]float64{}} }

// learn takes what a session has used.
func (w *worth) learn(uses map[string]*use) {
	if len(w.used) > mostNames || len(w.pass) > mostNames {
		*w = newWorth() // names that came and went
	}
	for d, u := range uses {
		if u.ready < leastUse {
			continue
		}
		share := float64(u.used) / float64(u.ready)
		if before, known := w.used[d]; known {
			share = (before + share) / 2
		}
		w.used[d] = share
	}
}

// count notes which drafters were ready in a round, and which of them the best choice has. A drafter that alone may draft shows nothing.
func (p *planner) count(ready []string, inUse bool) {
	if len(ready) < 2 {
		return
	}
	for _, d := range ready {
		u := p.uses[d]
		if u == nil {
			u = &use{}
			p.uses[d] = u
		}
		if u.ready++; inUse && slices.Contains(p.arm.Drafters, d) {
			u.used++
		}
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

// passes counts a session's share of the time of a round.
func (l *Shared) passes(round time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.worth.saved = min(l.worth.saved+time.Duration(openShare*float64(round)), openSaved)
}

// Opens implements Strategy.
func (p *planner) Opens(drafter string, prompt int) bool {
	l := p.shared
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.worth
	used, judged := w.used[drafter]
	one := l.costs.Time(1)
	if isWay(drafter) || !judged || used >= openUsed || one == 0 {
		return true
	}
	share := float64(w.pass[drafter]) / float64(one)
	if share < openFree {
		return true
	}
	cost := time.Duration(share * float64(l.costs.Time(max(prompt, 1))))
	if cost > w.saved {
		return false
	}
	w.saved -= cost
	return true
}

package strategy

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
)

// own decides when the planner asks for the target's own guesses. The guesses of a round come with the verdict of the round before, which
// pays for them: so a way is asked in every round while the best choice uses it, and otherwise only as often as its credit allows. Such
// a guess is compared with what was committed, whether or not it was used.
type own struct {
	t      learn.SelfDraftTuning
	rounds int
	used   map[string]int  // by way: the latest round whose best choice had it
	credit time.Duration   // for guesses that may not be used
	last   time.Duration   // of the latest round
	rows   float64         // running mean of prompt nodes in a round
	paid   time.Duration   // what the prompt nodes of the round before took
	waits  map[string]bool // ways without a known price that were asked already, until their guess has come
}

func newOwn(t learn.SelfDraftTuning) own {
	return own{t: t, used: map[string]int{}, waits: map[string]bool{}}
}

// isSelfDraft reports whether the name is that of one of the target's own ways.
func isSelfDraft(name string) bool { return slices.Contains(tandem.SelfDrafts(), name) }

// use notes that the best choice of a round has these drafters.
func (w *own) use(drafters []string) {
	for _, d := range drafters {
		if isSelfDraft(d) {
			w.used[d] = w.rounds + 1
		}
	}
}

// round takes a round that asked those drafters, and returns what is to be added to its time: prompt nodes are for the next round, so they
// are counted there. extra is what the prompt nodes of the round took.
func (w *own) round(o *Outcome, asked []string, extra time.Duration) (add time.Duration) {
	w.rounds++
	add = -extra
	if slices.Contains(asked, tandem.PPD) {
		add += w.paid
	}
	w.paid = extra
	w.rows += (float64(o.Prompts) - w.rows) / 8
	if w.last == 0 {
		w.credit += time.Duration(w.t.Start * float64(o.Wall))
	}
	w.last = o.Wall
	w.credit = min(w.credit+time.Duration(w.t.Share*float64(o.Wall)), o.Wall)
	for _, d := range append(o.Idle[:len(o.Idle):len(o.Idle)], o.Drafts...) {
		delete(w.waits, d.Drafter)
	}
	return add
}

// rowsOf returns what prompt nodes took for a way's latest guess.
func (w *own) rowsOf(drafter string) time.Duration {
	if drafter == tandem.PPD {
		return w.paid
	}
	return 0
}

// Prompts implements Strategy: as many rows as bring the most tokens beyond those that the same time brings otherwise. A way that is only
// looked at gets the fewest.
func (p *planner) Prompts(way string, nodes int, rows []int, gains []float64) int {
	if last, used := p.own.used[way]; !used || p.own.rounds-last > p.own.t.Lasting {
		return 0
	}
	best, most := -1, 0.0
	token := p.shared.perToken(p.round)
	for i, n := range rows {
		others := int(p.rows + 0.5)
		if v := gains[i]*token.Seconds() - p.shared.extra(nodes+others+n, n).Seconds(); v > most {
			best, most = i, v
		}
	}
	return best
}

// Guesses implements Strategy.
func (p *planner) Guesses(offered []string) (ask []string) {
	w := &p.own
	for _, name := range offered {
		price := p.parts.drafter(name).draft
		last, used := w.used[name]
		switch {
		case used && w.rounds-last <= w.t.Lasting:
		case price > 0 && float64(price) < p.tuning.Choice.Free*float64(p.round): // as if it were always there
		case price == 0 && (!w.waits[name] || w.rounds%w.t.Lasting == 0): // unknown: one guess will tell
			w.waits[name] = true
		case price > 0 && price <= w.credit:
			w.credit -= price
		default:
			continue
		}
		ask = append(ask, name)
	}
	return ask
}

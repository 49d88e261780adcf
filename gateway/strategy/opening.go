package strategy

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/worth"
)

// What must be paid for before it drafts: a drafter must read the text, and a self-draft guesses in the round before.

// Opens implements Strategy. A drafter must first read what is committed. A session is opened there once that takes less time than the
// drafter may save. For each token that is expected to come it may save the mean over what its rounds may bring (worth.Way.Saves), against
// the best way without it. As many tokens are expected as earlier answers had; if the answer is longer already, as many again. A drafter
// that nobody has asked yet may save half of the time: one session finds that out.
//
// What the drafter reads of the text counts as unread. A drafter that keeps the text of an earlier session would have to read only what
// is new, but no gateway knows what a drafter still holds before it is opened. To take it for granted would cost a long reading where it
// is wrong, such as after the drafter's restart; to doubt it costs the drafter's help in a first part of an answer.
func (p *planner) Opens(drafter string, among []string) (open, settled bool) {
	if d := p.parts.Drafter(drafter); p.output <= 0 || d.Pass == 0 || p.isFree(drafter) || p.shared.pass(1) == 0 {
		return true, true
	}
	if p.during == 0 { // no round has shown yet who shares the passes
		crowd := p.shared.crowd()
		p.rows, p.tickets = crowd, crowd
	}
	others := p.tickets * max(p.shared.usual(), 1)
	plain, free, models := p.ways(among, tandem.DefaultBounds(tandem.StrategyPlanner))
	without, ways := plain.Rate(others), []worth.Way(nil)
	for _, w := range append(free, models...) {
		if len(w.Drafters) > 0 && len(free) > 0 && free[0].Known { // it drafts beside the free ones, whose rows are in all ways
			w.Accepted += free[0].Accepted - worth.Common(free[0].Accepted, w.Accepted)
		}
		if name := w.Drafters; len(name) == 1 && name[0] == drafter {
			ways = append(ways, w)
		} else if w.Known {
			without = max(without, w.Rate(others))
		}
	}
	d := p.parts.Drafter(drafter)
	done := float64(p.text.base - p.text.begin)
	price := float64(d.Reads(p.prompt+int(done))) * p.reading(drafter)
	left := float64(p.output) - done
	var saves float64
	for _, w := range ways {
		saves = max(saves, w.Saves(without, others))
	}
	much := (1 + others) * min(left, max(p.expects-done, done))
	// What nobody knows may double the speed: one session finds out. What takes longer than all that may come never pays.
	open = price <= saves*much || price <= much/without/2 && p.shared.first(drafter)
	return open, open || price > left*(1+others)/without
}

// reading returns the seconds in which a drafter reads a token of a prompt.
func (p *planner) reading(drafter string) float64 {
	return p.parts.Drafter(drafter).Time(readRows, p.shared.pass).Seconds() / readRows
}

// readRows are the rows of a pass that reads a prompt.
const readRows = 1 << 6

// gain is the name of the yield of a self-draft's guesses: the tokens that they add to a round.
func gain(selfDraft string) string { return "gain of " + selfDraft }

// Guesses implements Strategy. It asks the self-drafts whose guess is expected to bring more tokens than other rounds would in the same
// time. The credit pays for a look at others.
func (p *planner) Guesses(offered []string) (ask []string) {
	for _, name := range offered {
		e := p.yields.Of(gain(name))
		price := p.rate() * p.parts.Drafter(name).Pass.Seconds()
		if e.Accepted < price {
			if e.Accepted+e.Doubt < price || price > float64(p.credit) {
				continue
			}
			p.credit.Pay(price)
		}
		ask = append(ask, name)
	}
	return ask
}

// learnGuesses learns how many tokens more each self-draft has brought a round than the best of the other drafts.
func (p *planner) learnGuesses(o *Outcome) {
	all := append(o.Idle[:len(o.Idle):len(o.Idle)], o.Drafts...)
	for _, d := range all {
		if !isSelfDraft(d.Drafter) || o.AtEnd {
			continue
		}
		worthOf := func(d Draft) float64 {
			rows := d.Got.Tree.Len()
			return float64(spec.Held(d.Got.Tree, o.Verdict.Tokens)) - p.rate()*p.shared.extra(rows, rows-1).Seconds()
		}
		var most float64
		for _, other := range all {
			if other.Drafter != d.Drafter {
				most = max(most, worthOf(other))
			}
		}
		p.yields.Observe(gain(d.Drafter), worth.Yield{Accepted: max(worthOf(d)-most, 0)})
	}
}

// Prompts implements Strategy. It takes as many rows as bring the most tokens beyond those that other rounds would bring in the same time.
// A self-draft that is only looked at gets the fewest rows.
func (p *planner) Prompts(selfDraft string, nodes int, rows []int, gains []float64) int {
	if e := p.yields.Of(gain(selfDraft)); !e.Known || e.Accepted < p.rate()*p.parts.Drafter(selfDraft).Pass.Seconds() {
		return 0
	}
	best, most := -1, 0.0
	for i, n := range rows {
		if v := gains[i] - p.rate()*p.shared.extra(nodes+p.beside()+n, n).Seconds(); v > most {
			best, most = i, v
		}
	}
	return best
}

package strategy

import (
	"cmp"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Opens implements Strategy. A drafter must first read the prompt and what is committed, and the text as it grows. Where that takes longer
// than what it may save compared with the ways without it, the session does without: a long text with little to come, or one of many
// sessions whose passes are full without drafts. It is opened later, if at all, in two cases:
//
//   - Where sessions come together, a slow drafter is not opened before the rounds without it have cost a share of its reading, by the same
//     forecast: by then they have shown how many share the passes.
//   - Where its reading takes more than a good part of a usual answer, it is not opened before it might have saved as much in this answer
//     as its reading takes. An answer that is so long already is expected to go on for as long again.
//
// Whether its drafts are any good is no reason to do without a drafter that no session has asked yet.
//
// The whole text counts as unread. A drafter that keeps the text of an earlier session would have to read only what is new, but no gateway
// knows what a drafter still holds before it is opened. To take it for granted would cost a long reading where it is wrong, such as after
// the drafter's restart; to doubt it costs the drafter's help in a first part of an answer.
func (p *planner) Opens(drafter string, among []string) (open, settled bool) {
	if isSelfDraft(drafter) || p.output <= 0 || p.shared.pass(1) == 0 {
		return true, true
	}
	crowd := p.shared.crowd()
	if p.during == 0 { // no round has shown yet who shares the passes
		p.rows, p.tickets = crowd, crowd
		p.choices.Beside(crowd * max(p.shared.usual(), 1))
	}
	p.awaits = p.awaits || crowd >= 1 && p.later(drafter)
	with, hope, without := 0.0, 0.0, 0.0
	for _, a := range p.arms(among, tandem.DefaultBounds(tandem.StrategyPlanner)) {
		if e := p.choices.Estimate(a); slices.Contains(a.Drafters, drafter) {
			with, hope = max(with, e.Rate), max(hope, e.Hope)
		} else if e.Known {
			without = max(without, e.Rate)
		}
	}
	read := p.reading(drafter)
	if without == 0 || read == 0 || p.parts.drafter(drafter).free {
		return true, true
	}
	done, left := float64(p.hindsights.base-p.hindsights.begin), float64(p.output)
	price, saves := (float64(p.prompt)+done)*read, 1/without-1/hope
	switch usual := min(left, cmp.Or(p.expects, p.tuning.Choice.Usual)); {
	case price > p.tuning.Choice.Late*usual/without && done*saves < price:
		return false, price > (left-done)/without // all that may come takes less
	case crowd >= 1 && p.later(drafter) && done*(1/without-1/with) < p.tuning.Choice.Shown*price:
		return false, false
	}
	if p.parts.drafter(drafter).draft == 0 {
		return true, true // no session has asked it: what its passes cost does not tell what its drafts bring
	}
	if p.expects > 0 {
		left = min(left, 2*max(p.expects, done))
	}
	return price <= (left-done)*saves, true
}

// reading returns the seconds in which a drafter reads a token of a prompt: as it measured, else as the target does, in proportion; 0: what
// its passes cost is not known.
func (p *planner) reading(drafter string) float64 {
	of := p.parts.drafter(drafter)
	if of.reading > 0 {
		return of.pass.Seconds() * of.reading
	}
	return of.pass.Seconds() * p.rowsCost(readRows) / readRows
}

// readRows are the rows of a pass that reads a prompt.
const readRows = 64

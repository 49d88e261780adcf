package strategy

import (
	"slices"

	"github.com/tandem-llm/tandem"
)

// Opens implements Strategy. A drafter must first read the prompt and what is committed, and the text as it grows. Where that takes longer
// than what it may save compared with the ways without it, the session does without: a long text with little to come, or one of many
// sessions whose passes are full without drafts. Where sessions come together, a slow drafter is not opened before the rounds without it
// have cost a share of its reading, by the same forecast: by then they have shown how many share the passes.
func (p *planner) Opens(drafter string, among []string) (open, settled bool) {
	one, wide := p.shared.pass(1), p.shared.pass(readRows)
	if isSelfDraft(drafter) || p.output <= 0 || one == 0 {
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
	read := p.parts.drafter(drafter).pass.Seconds() * float64(wide) / float64(one) / readRows // a token
	if without == 0 || read == 0 || p.parts.drafter(drafter).free {
		return true, true
	}
	done, left := float64(p.hindsights.base-p.hindsights.begin), float64(p.output)
	if p.expects > 0 {
		left = min(left, 2*p.expects)
	}
	price := (float64(p.prompt) + done) * read
	if crowd >= 1 && p.later(drafter) && done*(1/without-1/with) < p.tuning.Choice.Shown*price {
		return false, false
	}
	return price <= (left-done)*(1/without-1/hope), true
}

// readRows are the rows of a pass that reads a prompt.
const readRows = 64

package strategy

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Hindsight implements Strategy.
func (p *planner) Hindsight(drafter string, base tandem.Position, h tandem.Hindsight, spent time.Duration) {
	x := &p.text
	if len(x.of) == 0 {
		x.begin = base
	}
	rows := int(base - x.of[drafter].base)
	x.base = max(x.base, base)
	if len(x.of) < mostNames || x.of[drafter].base > 0 {
		x.of[drafter] = report{base, h}
	}
	if d := p.parts.Drafter(drafter); spent > 0 && (d.Model || !d.Asked) {
		one := d.Time(1, p.shared.pass)
		share := float64(max(one, 1)) / float64(max(d.Time(rows, p.shared.pass), 1))
		p.each(func(x *worth.Parts) { worth.Measure(&x.Drafter(drafter).Pass, time.Duration(share*float64(spent))) })
	}
}

func (p *planner) Learn(o *Outcome) {
	if o.Lossy {
		return // something was lost; that is no way's fault
	}
	v := o.Verdict
	p.text.base = v.Base + tandem.Position(o.Tokens)
	share := 1 - 1/worth.Tuned.Rounds
	brought := float64(o.Tokens) + p.tickets*p.shared.usual()
	wall := o.Wall
	for _, d := range o.Drafts {
		wall = min(wall, o.Wall-d.Extra) // to catch up costs once, not every round
	}
	p.tokens, p.during = p.tokens*share+brought, p.during*share+wall.Seconds()
	p.rows += (float64(max(v.Rows-v.Nodes, 0)) - p.rows) * worth.CostGain
	p.tickets += (max(float64(v.Batch-1), p.shared.others(), 0) - p.tickets) * worth.CostGain
	p.credit.Earn(p.shared.rules.Explore * float64(o.Tokens))
	passes := p.times(o)
	p.yields.Fade()
	if !o.AtEnd {
		p.observe(o, passes)
	}
	p.learnGuesses(o)
	for _, d := range append(o.Idle[:len(o.Idle):len(o.Idle)], o.Drafts...) {
		if o.Judged || d.Got.Tree.Len() < 2 || slices.ContainsFunc(o.Idle, func(i Draft) bool { return i.Drafter == d.Drafter }) {
			p.record(d.Drafter, d.Got.Tree, v.Tokens)
		}
	}
	if o.Merged && o.Judged {
		if p.mix == nil {
			p.record("", o.Tree, v.Tokens)
		} else {
			trees := o.trees()
			p.mix.Record(trees, v.Tokens)
			p.shared.mixed(trees, v.Tokens)
		}
	}
}

// observe learns what a round has shown of the models that it asked, together and each alone, and of the free drafters, also if their
// drafts were not used.
func (p *planner) observe(o *Outcome, passes float64) {
	free, models, asked, seen := worth.Yield{Rows: 1}, worth.Yield{Rows: 1, Passes: passes}, 0, false
	for _, d := range append(o.Idle[:len(o.Idle):len(o.Idle)], o.Drafts...) {
		y := worth.Yield{Accepted: float64(spec.Held(d.Got.Tree, o.Verdict.Tokens)), Rows: float64(max(d.Got.Tree.Len(), 1))}
		if !slices.Contains(p.way.Drafters, d.Drafter) {
			free.Accepted, free.Rows, seen = max(free.Accepted, y.Accepted), max(free.Rows, y.Rows), true
			continue
		}
		models.Accepted, models.Rows, asked = max(models.Accepted, y.Accepted), max(models.Rows, y.Rows), asked+1
		if d.Drafter != p.way.Set {
			y.Passes = p.passes([]string{d.Drafter}, d.Got.Busy, d.Got.Passes)
			p.yields.Observe(d.Drafter, y)
		}
	}
	if seen {
		p.yields.Observe(freeSet, free)
	}
	if asked == 0 {
		return
	}
	if asked == len(o.Drafts) { // all that was committed is theirs, whether or not they have said what they drafted
		models.Accepted, models.Rows = float64(o.Tokens-1), float64(max(o.Verdict.Nodes-o.Prompts, 1))
	}
	p.yields.Observe(p.way.Set, models)
	if p.models.Reason != worth.ReasonBest {
		w := p.way
		w.Expected = p.yields.Of(w.Set)
		p.credit.Pay(w.Loss(p.models.Rate(), p.models.Others))
	}
}

// passes returns how many passes of the slowest drafter a time of drafting is. seen is how many passes the drafters say there were, and the
// answer if no pass was measured yet.
func (p *planner) passes(drafters []string, busy time.Duration, seen int) float64 {
	unit := time.Duration(0)
	for _, d := range drafters {
		unit = max(unit, p.parts.Drafter(d).Pass)
	}
	if unit > 0 && busy > 0 {
		return float64(busy) / float64(unit)
	}
	return float64(max(seen, 1))
}

// each calls f for the parts of this session and, locked, for those that later sessions begin with.
func (p *planner) each(f func(*worth.Parts)) {
	f(p.parts)
	l := p.shared
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.parts)
}

// times learns from the times of a round. It returns how many passes the round's models took, or would have taken had nothing been drafted
// ahead. Times are those of passes over one row: the time for reading committed tokens is taken off. The first draft of a model in a
// session does not count, because it reads a text that is in no cache, which happens once.
func (p *planner) times(o *Outcome) float64 {
	longest, away, passes, cold, late := time.Duration(0), time.Duration(0), 0, false, false
	wasAhead := p.before.Ahead && p.before.Set == p.way.Set // what it drafts now was drafted ahead in part
	for _, d := range o.Drafts {
		of, n, busy := p.parts.Drafter(d.Drafter), d.Got.Passes, d.Got.Busy
		away, passes = max(away, d.Away), max(passes, n)
		switch {
		case n > 0 && !p.warm[d.Drafter]:
			p.warm[d.Drafter], cold = true, true
			p.each(func(x *worth.Parts) { x.Drafter(d.Drafter).Model = true })
			continue
		case d.Extra > 0:
			late = true
			continue
		case n > 0 && of.Pass > 0:
			passes := float64(n-1) + float64(of.Time(p.lags[d.Drafter], p.shared.pass))/float64(of.Pass)
			busy = time.Duration(float64(busy) * float64(n) / passes)
		}
		if slices.Contains(p.way.Drafters, d.Drafter) {
			longest = max(longest, busy)
		}
		p.each(func(x *worth.Parts) {
			of := x.Drafter(d.Drafter)
			of.Asked = true
			if of.Model = of.Model || n > 0; d.Away > 0 {
				worth.Measure(&of.Away, d.Away)
			}
			if n > 0 && !wasAhead {
				worth.Measure(&of.Pass, busy/time.Duration(n))
			} else if !of.Model {
				worth.Measure(&of.Pass, busy)
			}
		})
	}
	for _, d := range o.Idle {
		p.each(func(x *worth.Parts) { worth.Measure(&x.Drafter(d.Drafter).Pass, max(d.Got.Busy, 1)) })
	}
	p.each(func(x *worth.Parts) {
		switch {
		case cold:
		case len(o.Drafts) == 0:
			worth.Measure(&x.Plain, o.Rest)
		default:
			worth.Measure(&x.Drafted, max(o.Rest-away, 1))
		}
	})
	if late || cold {
		longest = 0
	}
	return p.learnAhead(o, p.passes(p.way.Drafters, longest, passes), wasAhead)
}

// learnAhead learns what drafting ahead does to rounds. It returns the passes that the round would have taken without it.
func (p *planner) learnAhead(o *Outcome, passes float64, wasAhead bool) float64 {
	set, v := p.way.Set, o.Verdict
	usual, inTurn := p.shared.pass(max(v.Rows, v.Nodes)), p.yields.Of(set).Passes
	wasAhead = wasAhead && inTurn > 0
	p.each(func(x *worth.Parts) {
		a := x.Ahead(set)
		if p.way.Ahead && usual > 0 && v.Busy > 0 {
			a.Slow = average(a.Slow, min(max(float64(v.Busy)/float64(usual), 1), 2))
		}
		if !wasAhead {
			return
		}
		a.Left = average(a.Left, min(max(passes/inTurn, worth.LeastChance), 1))
		if a.Idle++; slices.ContainsFunc(o.Drafts, func(d Draft) bool { return d.Got.Ahead > 0 }) {
			a.Idle = 0
		}
	})
	if wasAhead {
		return inTurn
	}
	return passes
}

// record learns how a tree fared.
func (p *planner) record(name string, t tandem.Tree, committed []tandem.Token) {
	if t.Len() < 2 {
		return
	}
	if p.chances[name] == nil {
		p.chances[name] = worth.NewCalibration()
	}
	p.chances[name].Record(t, committed)
}

func (p *planner) HandOn() {
	l := p.shared
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.learned()
	if len(x.yields) > mostNames {
		clear(x.yields) // names that came and went
	}
	p.yields.HandOn(x.yields)
	if len(p.text.of) > 0 {
		x.output = average(x.output, float64(p.text.base-p.text.begin))
	}
}

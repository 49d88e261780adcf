package strategy

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
)

// parts is what the planner knows of the parts of a round's time. Each part is a mean of its own, so a way is priced by its parts even if
// it was used little, and what has disturbed one round does not stay in the price of a way. A session works on a copy; what it measures
// goes into both. Shared's lock protects Shared's.
type parts struct {
	plain, drafted time.Duration         // the rest of a plain round, and of one with a draft: neither draft, its way, nor pass
	drafters       map[string]*drafting  // by drafter
	ahead          map[string]*aheadCost // by set of drafters
}

// drafting is what one drafter costs.
type drafting struct {
	draft time.Duration // for a tree
	pass  time.Duration // of its model, over the few rows of a usual one; 0: unknown, or it has no model
	away  time.Duration // the way to it and back, as its calls show: near nothing on the same machine; 0: unknown
	model bool          // it was seen to run one, or said what passes of it cost
	free  bool          // it costs next to nothing
	// reading is the time of a token of a prompt, as a share of pass. It is measured at the drafter's start, and pass goes on to be: so a
	// machine that was busy then does not make all prompts dear. 0: not known, so it is as in the target.
	reading float64
}

// aheadCost is what drafting ahead does to rounds of a set of drafters; 0: unknown.
type aheadCost struct {
	left float64 // the share of the drafting that remains in the round
	slow float64 // time of a pass beside which drafters draft, over that of another pass
	idle int     // rounds in a row for which nobody had drafted ahead, though asked to
}

// never reports whether these drafters seem never to draft ahead, such as those that have the cores of the verifier.
func (a *aheadCost) never() bool { return a.idle >= neverAhead }

// neverAhead are the rounds without anything drafted ahead of them that show that nothing ever will be.
const neverAhead = 8

func newParts() *parts {
	return &parts{drafters: map[string]*drafting{}, ahead: map[string]*aheadCost{}}
}

func (p *parts) clone() *parts {
	out := &parts{plain: p.plain, drafted: p.drafted, drafters: maps.Clone(p.drafters), ahead: maps.Clone(p.ahead)}
	for name, d := range out.drafters {
		out.drafters[name] = new(*d)
	}
	for name, s := range out.ahead {
		out.ahead[name] = new(*s)
	}
	return out
}

func (p *parts) drafter(name string) *drafting {
	d := p.drafters[name]
	if d == nil {
		if len(p.drafters) > mostNames {
			clear(p.drafters) // names that came and went
		}
		d = &drafting{}
		p.drafters[name] = d
	}
	return d
}

func (p *parts) beside(set string) *aheadCost {
	s := p.ahead[set]
	if s == nil {
		if len(p.ahead) > mostNames {
			clear(p.ahead)
		}
		s = &aheadCost{}
		p.ahead[set] = s
	}
	return s
}

// measure puts a time into a running mean of a part. One that is far above the mean counts as twice the mean: it was disturbed. One
// far below it shows that the mean was.
func measure(mean *time.Duration, latest time.Duration) {
	switch old := *mean; {
	case old > 0 && latest < old/2:
		*mean = max(latest, 1)
	case old > 0:
		*mean = learn.Mean(old, min(latest, 2*old))
	default:
		*mean = learn.Mean(0, latest)
	}
}

// unit returns the longest pass of a set of drafters, or the longest draft of those without a model, never 0.
func (p *parts) unit(drafters []string) (longest time.Duration) {
	longest = 1
	for _, d := range drafters {
		of := p.drafter(d)
		longest = max(longest, of.pass)
		if of.pass == 0 {
			longest = max(longest, of.draft)
		}
	}
	return longest
}

// away returns the longest way to one of the drafters, which are asked at once.
func (p *parts) away(drafters []string) (longest time.Duration) {
	for _, d := range drafters {
		longest = max(longest, p.drafter(d).away)
	}
	return longest
}

// passes returns a time of drafting as a multiple of the longest pass: as many as there were, if none was measured yet.
func (p *parts) passes(drafters []string, busy time.Duration, seen int) float64 {
	if unit := p.unit(drafters); unit > 1 && busy > 0 {
		return float64(busy) / float64(unit)
	}
	return max(float64(seen), 0.01)
}

// each calls f for the parts of this session and, locked, for those that later sessions begin with.
func (p *planner) each(f func(*parts)) {
	f(p.parts)
	l := p.shared
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.parts)
}

// setOf returns the name of a set of drafters, whose order does not count.
func setOf(drafters []string) string {
	return strings.Join(slices.Sorted(slices.Values(drafters)), ", ")
}

// reads returns how much longer a drafter's next pass takes because it reads lag committed tokens and not usual ones: as much as the same
// rows do in a pass of the target, in proportion.
func (p *planner) reads(drafter string, lag, usual int) time.Duration {
	return time.Duration(float64(p.parts.drafter(drafter).pass) * max(p.rowsCost(lag)-p.rowsCost(usual), 0))
}

// rowsCost returns what a pass of so many rows costs, as a multiple of one of a single row: as in the target, which is measured best.
func (p *planner) rowsCost(rows int) float64 {
	one := p.shared.pass(1)
	if one == 0 || rows < 2 {
		return 1
	}
	return max(float64(p.shared.pass(rows))/float64(one), 1)
}

// lag returns how many committed tokens a drafter was not told of.
func (p *planner) lag(drafter string) int {
	h := &p.hindsights
	if r, known := h.of[drafter]; known {
		return int(h.base - r.base)
	}
	return 0
}

// price completes a way by the time of its rounds. Its drafting takes what it has taken; that of drafters which were not asked together
// yet what the longest of them takes, and a drafter that was never asked as many passes as bring the most by its hindsight.
func (p *planner) price(a *learn.Arm) {
	rest, others := p.parts.plain, int(p.rows+0.5)
	if len(a.Drafters) == 0 {
		if pass := p.shared.pass(1 + others); pass > 0 {
			a.Time = rest + pass
		}
		return
	}
	if p.parts.drafted > 0 {
		rest = p.parts.drafted
	}
	rest += p.parts.away(a.Drafters)
	s, draft, unit := p.choices.Shape(*a), time.Duration(0), p.parts.unit(a.Drafters)
	depth, read := 1.0, time.Duration(0)
	for _, d := range a.Drafters {
		one := p.parts.drafter(d).draft
		if one == 0 {
			one = time.Duration(p.depth(d)) * p.parts.drafter(d).pass
		}
		if isSelfDraft(d) {
			draft += one
		} else {
			draft = max(draft, one)
		}
		usual := int(s.Accepted + 1)
		a.Once, read = max(a.Once, p.reads(d, p.lag(d), usual)), max(read, p.reads(d, usual, 1))
		depth = max(depth, float64(p.depth(d)))
	}
	if s.Rows > 0 {
		draft = time.Duration(s.Draft * float64(unit))
	} else {
		s.Rows = 1 + depth
	}
	draft += read
	pass := p.shared.pass(int(p.rows + s.Rows + 0.5))
	if pass == 0 {
		return
	}
	once := time.Duration(float64(a.Once) / p.tuning.Planner.Stale)
	if !a.Ahead {
		a.Time = rest + draft + once + pass
		return
	}
	// Unless it was seen, half of the drafting is assumed to be of use, and to keep the pass from as much of the time: no gain.
	x := *p.parts.beside(a.Set)
	known := x.left > 0 && x.slow > 0
	if x.left == 0 {
		x.left = 0.5
	}
	if x.slow == 0 {
		x.slow = 1 + float64(draft)/2/float64(pass)
	}
	a.Time = rest + time.Duration(x.left*float64(draft)) + once + time.Duration(x.slow*float64(pass))
	if !known {
		a.Least = rest + pass
	}
}

// timed is a draft and what it took.
type timed struct {
	name string
	got  tandem.Proposed
	busy time.Duration
	away time.Duration
}

// drafts returns the drafts of a round whose times count, what they took together, and the most passes of one. A time is that of passes
// of a single row: what the drafter read of committed tokens is taken off. cold: one of them was the first of its drafter in this session;
// late: one had to catch up.
func (p *planner) drafts(o *Outcome) (list []timed, longest time.Duration, passes int, cold, late bool) {
	for _, d := range o.Drafts {
		switch passes = max(passes, d.Got.Passes); {
		case !p.warm[d.Drafter] && d.Got.Passes > 0:
			p.warm[d.Drafter], cold = true, true
		case d.Extra > 0:
			late = true
		default:
			busy := d.Got.Busy + p.own.rowsOf(d.Drafter)
			if n := float64(d.Got.Passes); n > 0 {
				busy = time.Duration(float64(busy) * n / (n - 1 + p.rowsCost(p.lags[d.Drafter])))
			}
			if isSelfDraft(d.Drafter) {
				longest += busy
			} else {
				longest = max(longest, busy)
			}
			list = append(list, timed{d.Drafter, d.Got, busy, d.Away})
		}
	}
	for _, d := range o.Idle {
		list = append(list, timed{d.Drafter, d.Got, d.Got.Busy + p.own.rowsOf(d.Drafter), 0})
	}
	return list, longest, passes, cold, late
}

// learnParts learns from the times of a round. The first draft of a drafter in a session is left out: its model reads what is not in any
// cache, which it will not do again. It returns what the round was like.
func (p *planner) learnParts(o *Outcome) (s learn.Shape) {
	v, set := o.Verdict, p.arm.Set
	list, longest, passes, cold, late := p.drafts(o)
	away := time.Duration(0)
	for _, d := range o.Drafts {
		away = max(away, d.Away)
	}
	ahead := p.before.Ahead && p.before.Set == set // what it drafts now was drafted ahead in part
	usual, usualDraft := p.shared.pass(max(v.Rows, v.Nodes)), p.choices.Shape(p.arm).Draft
	p.each(func(x *parts) {
		for _, d := range list {
			of := x.drafter(d.name)
			if d.away > 0 {
				measure(&of.away, d.away)
			}
			if !ahead {
				of.draft = learn.Mean(of.draft, d.busy) // how many passes a tree takes varies by itself
			}
			switch {
			case d.got.Passes > 0 && !ahead:
				measure(&of.pass, d.busy/time.Duration(d.got.Passes))
				of.model = true
			case !of.model:
				of.pass = 0
			}
		}
		switch {
		case cold:
		case len(p.arm.Drafters) == 0:
			measure(&x.plain, o.Rest)
		default:
			measure(&x.drafted, max(o.Rest-away, 1))
		}
		if p.arm.Ahead && usual > 0 && v.Busy > 0 {
			b := x.beside(set)
			b.slow = average(b.slow, min(float64(v.Busy)/float64(usual), 2))
		}
	})
	if late || cold {
		longest = 0
	}
	s = learn.Shape{Accepted: float64(o.Tokens - 1), Draft: p.parts.passes(p.arm.Drafters, longest, passes),
		Rows: float64(max(v.Nodes-o.Prompts, 1)), Depth: depthOf(o.Tree)}
	if ahead && usualDraft > 0 {
		p.each(func(x *parts) {
			b := x.beside(set)
			b.left = average(b.left, min(max(s.Draft/usualDraft, 0.01), 1))
			if b.idle++; slices.ContainsFunc(o.Drafts, func(d Draft) bool { return d.Got.Ahead > 0 }) {
				b.idle = 0
			}
		})
		s.Draft = usualDraft // what is remembered of a set is its drafting in turn
	}
	return s
}

func depthOf(t tandem.Tree) float64 {
	_, depth := t.Depths()
	return float64(depth)
}

// depth returns how deep a drafter's trees are: as they were, or as a chain would be that brings the most tokens per time, by what
// its passes cost and how often it was right of late.
func (p *planner) depth(drafter string) int {
	if s := p.choices.Shape(learn.Arm{Set: drafter}); s.Depth > 0 {
		return max(int(s.Depth+0.5), 1)
	}
	h, right := p.hindsights.of[drafter].hindsight, 0.5
	if h.Tokens > 0 {
		hits := 0
		for i := range h.Tokens {
			hits += int(h.Hits >> i & 1)
		}
		right = (float64(hits) + 1) / (float64(h.Tokens) + 2)
	}
	chances, reach := make([]float64, 0, mostDepth), 1.0
	for range mostDepth {
		reach *= right
		chances = append(chances, reach)
	}
	pass, best, most := p.parts.drafter(drafter).pass, 1, 0.0
	tokens := 1.0
	for i, c := range chances {
		tokens += c
		round := p.parts.drafted + p.parts.drafter(drafter).away + time.Duration(i+1)*pass + p.shared.pass(i+2+int(p.rows+0.5))
		if r := tokens / max(round, 1).Seconds(); r > most {
			best, most = i+1, r
		}
	}
	return best
}

// mostDepth is how deep a chain is thought of whose drafter was never asked.
const mostDepth = 8

// later reports whether a drafter takes so long that it is asked only once the others have answered, and if it is then worth the wait.
func (p *planner) later(drafter string) bool {
	d := p.parts.drafters[drafter]
	return d != nil && !isSelfDraft(drafter) && float64(d.draft+d.away) > p.tuning.Choice.Felt*float64(p.shared.pass(1))
}

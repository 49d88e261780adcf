package strategy

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/learn"
)

// planner is the default strategy: each round it takes the way to draft that is expected to bring the most tokens per time, plain decoding
// included (learn.Planner). Tokens are what the way has brought in this text; the time is the sum of its parts (parts).
// It leaves width and depth to the drafter, which knows from costs and acceptance how far it pays (spec.Cut, spec.Children). Drafters that
// cost next to nothing, such as lookup, are asked in every round with a draft. So the ways are: not at all, those alone, those with each of
// the other drafters, and all of them. Several drafts become one tree whose chances are learned (spec.Mix). A drafter that takes long is
// asked only when the others have answered, and only if it then is worth the wait (Wanted).
//
// Each way is there in turn, where nobody drafts while the target computes, and ahead, where drafters go on for the next round. On cores
// that both share a pass then takes longer. So ahead must have shown its gain.
type planner struct {
	shared          *Shared
	tuning          *learn.Tuning // the gateway's, never changed
	vote            tandem.Vote   // of several; VoteNone: never
	ahead           bool
	mix             *spec.Mix // nil: drafts are merged by the drafters' weights, which stay
	choices         *learn.Planner
	chances         map[string]*learn.Calibration
	parts           *parts
	warm            map[string]bool // drafters that have drafted in this session
	lags            map[string]int  // by drafter asked: committed tokens that it has to read first
	awaits          bool            // a drafter that is slow may be opened, or is
	slow            []string        // drafters that the round is to ask only once the others have answered
	enough          float64         // expected tokens of a draft that is there at once, from which on no slow drafter is asked
	round           time.Duration   // running mean of the time of a round
	brought, during float64         // tokens and seconds of the latest rounds: earlier ones count less
	arm, before     learn.Arm       // of this round and of the one before
	base            string          // the set of drafters in use
	apart           string          // the free drafters whose good drafts are no matter of choice; "": no drafter is slow
	rows            float64         // of others in the same pass, and
	tickets         float64         // their tickets, running means
	drafted         int             // rounds with a draft
	prompt          int             // tokens of the prompt
	output          int             // most tokens to come
	expects         float64         // mean tokens of earlier outputs
	hindsights      hindsights
	own             own
}

// ahead ends the name of a way that drafts ahead.
const ahead = " ahead"

func newPlanner(l *Shared, vote tandem.Vote, adaptive, ahead bool, prompt, output int) *planner {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &planner{shared: l, tuning: &l.rules.Tuning, vote: vote, ahead: ahead, prompt: prompt, output: output,
		choices: learn.NewPlanner(l.rules.Planner, l.rules.Tuning.Planner, l.planner), chances: map[string]*learn.Calibration{},
		parts: l.parts.clone(), round: l.round, expects: l.output, warm: map[string]bool{}, lags: map[string]int{},
		hindsights: newHindsights(l.rules.Tuning), own: newOwn(l.rules.Tuning.SelfDrafts)}
	if adaptive {
		p.mix = l.mix.Clone()
	}
	for name, c := range l.chances {
		p.chances[name] = c.Inherit(p.tuning.Choice.Inherited)
	}
	return p
}

func (p *planner) Several() bool { return true }

func (p *planner) Decide(ready []string, bounds tandem.Bounds) Decision {
	arms := p.arms(ready, bounds)
	var why learn.Reason
	p.before = p.arm
	p.arm, why = p.choices.Choose(arms, p.tickets*p.shared.usual())
	p.enough = p.suffices(arms)
	if why == learn.ReasonBest || why == learn.ReasonHysteresis {
		p.base = p.arm.Set
	}
	if p.arm.Set == p.base {
		p.own.use(p.arm.Drafters)
	}
	out := Decision{Vote: p.arm.Vote, Nodes: bounds.Nodes, Choice: p.arm.Name, Reason: string(why)}
	p.slow = p.slow[:0]
	clear(p.lags)
	if len(ready) > 1 && !bounds.Plain() {
		// One that takes long is not told: the pass would take longer, and a round with it says more.
		quick := slices.DeleteFunc(slices.Clone(ready), p.later)
		out.Follow = p.hindsights.follow(quick, p.arm.Drafters, func(d string) time.Duration { return p.parts.drafter(d).pass })
	}
	if len(p.arm.Drafters) == 0 {
		return out
	}
	costs := tandem.Plan{Round: p.parts.drafted, Rate: p.rate()}
	slope := 1.0
	if p.drafted++; p.drafted%p.tuning.Choice.WideEvery == p.tuning.Choice.WideEvery/2 {
		slope = p.tuning.Choice.WideSlope
	}
	costs.Verify, costs.Others = p.shared.curve(bounds.Nodes, int(p.rows+p.own.rows+0.5), slope)
	costs.Others *= p.tickets
	var last []Ask
	for _, d := range ready {
		if slices.Contains(p.arm.Drafters, d) {
			own := costs
			own.Accept = p.accept(d)
			p.lags[d] = p.lag(d)
			k := Ask{d, tandem.Proposal{Bounds: bounds, Growth: tandem.GrowBest, Plan: own, Ahead: p.arm.Ahead}}
			if p.later(d) {
				last, p.slow = append(last, k), append(p.slow, d)
			} else {
				out.Asks = append(out.Asks, k)
			}
		}
	}
	if len(out.Asks) > 0 {
		out.Later = len(last)
	}
	if out.Asks = append(out.Asks, last...); len(out.Asks) > 1 {
		out.Cut, out.Mix = costs, p.mix
		if p.mix == nil {
			out.Cut.Accept = p.accept("")
		}
	}
	return out
}

func (p *planner) Explain(Decision) string { return p.choices.Explain() }

// arms returns the ways to spend a round, with what is expected of them.
//
// Where a drafter is slow, the rounds in which a free one has a good draft are no matter of choice: no slow one is asked (Wanted). The ways
// are then compared by the other rounds alone. Whether the free ones are asked in those at all is decided by all of theirs.
func (p *planner) arms(ready []string, bounds tandem.Bounds) []learn.Arm {
	arms := []learn.Arm{{Name: Plain, Vote: tandem.VoteNone}}
	if bounds.Plain() {
		p.price(&arms[0])
		return arms
	}
	free, dear := p.prices(ready)
	p.apart = ""
	if len(free) > 0 {
		arms = append(arms, p.ask(free, nil))
		if p.awaits || slices.ContainsFunc(dear, p.later) {
			p.apart = arms[1].Set
		}
	}
	for _, d := range dear {
		arms = append(arms, p.ask(free, []string{d}))
	}
	if len(dear) > 1 && p.vote != tandem.VoteNone {
		arms = append(arms, p.together(free, dear)...)
	}
	if p.ahead {
		for _, a := range arms[1:] {
			models := func(d string) bool { return p.parts.drafter(d).model }
			beside := p.parts.beside(a.Set)
			if (a.Set == p.base || beside.left > 0) && !beside.never() && slices.ContainsFunc(a.Drafters, models) {
				a.Name, a.Ahead = a.Name+ahead, true
				arms = append(arms, a)
			}
		}
	}
	p.recall(ready, free, arms)
	for i := range arms {
		p.price(&arms[i])
	}
	if p.apart != "" {
		if p.choices.Estimate(arms[1]).Rate < p.choices.Estimate(arms[0]).Rate {
			arms = slices.Delete(arms, 1, 2)
		} else {
			arms = arms[1:]
			arms[0].Set += others
			arms[0].Idle = true
			p.price(&arms[0])
		}
	}
	return arms
}

// others ends the name of the set of the free drafters where only rounds count in which none has a good draft.
const others = ", otherwise"

// suffices returns how many tokens a draft that is there at once must promise, so that the slow drafter that otherwise would be best is not
// asked: what that promises, less the tokens that its time brings otherwise; at least half of it. 0: there is none.
func (p *planner) suffices(arms []learn.Arm) (tokens float64) {
	most := 0.0
	for _, a := range arms {
		if !slices.ContainsFunc(a.Drafters, p.later) {
			continue
		}
		if e := p.choices.Estimate(a); e.Rate > most {
			theirs, draft := e.Tokens-1, p.choices.Shape(a).Draft*p.parts.unit(a.Drafters).Seconds()
			most, tokens = e.Rate, max(theirs-p.choices.Best().Rate*draft, theirs/2, 0.1)
		}
	}
	return tokens
}

// good reports whether one of these drafts, of drafters that are not slow, is so good that no slow one is needed.
func (p *planner) good(drafts []Draft) bool {
	return p.enough > 0 && slices.ContainsFunc(drafts, func(d Draft) bool {
		return !slices.Contains(p.slow, d.Drafter) && spec.Expected(d.Got.Tree, p.accept(d.Drafter)) >= p.enough
	})
}

// Wanted implements Strategy.
func (p *planner) Wanted(drafts []Draft) bool { return !p.good(drafts) }

// together returns the ways that ask several of the drafters that cost something: all, and those that cost about the same without the dear
// ones, so that a drafter that costs too much does not spoil what the others bring together. The target's own ways come and go from round
// to round; so each of these ways to spend a round is also there without them, and stays.
func (p *planner) together(free, dear []string) (arms []learn.Arm) {
	byPrice := slices.Clone(dear)
	slices.SortStableFunc(byPrice, func(a, b string) int {
		return cmp.Compare(p.parts.drafter(a).draft, p.parts.drafter(b).draft)
	})
	add := func(set []string) {
		if len(set) < 2 {
			return
		}
		arm := p.ask(free, set)
		if !slices.ContainsFunc(arms, func(a learn.Arm) bool { return a.Name == arm.Name }) {
			arms = append(arms, arm)
		}
	}
	for n := range byPrice {
		if n+1 == len(byPrice) || p.dearer(byPrice[n+1], byPrice[n]) {
			add(slices.DeleteFunc(slices.Clone(byPrice[:n+1]), isSelfDraft))
			add(byPrice[:n+1])
		}
	}
	return arms
}

// dearer reports whether a costs far more than b, so much that it is felt.
func (p *planner) dearer(a, b string) bool {
	x, y := p.parts.drafter(a).draft, p.parts.drafter(b).draft
	return y > 0 && float64(x) > max(p.tuning.Choice.Dearer*float64(y), p.tuning.Choice.Felt*float64(p.round))
}

// prices divides drafters into those whose drafts cost next to nothing and the others. Where drafts are never merged, none is free. One
// that was free stays so until it costs twice as much: a busy machine does not change the ways.
func (p *planner) prices(ready []string) (free, dear []string) {
	for _, d := range ready {
		of := p.parts.drafter(d)
		most := p.tuning.Choice.Free
		if of.free {
			most *= 2
		}
		if of.free = of.draft > 0 && float64(of.draft) < most*float64(p.round); of.free && p.vote != tandem.VoteNone {
			free = append(free, d)
		} else {
			dear = append(dear, d)
		}
	}
	return free, dear
}

// ask returns the way that asks the drafters of both lists, whose order does not count: those that are free, and others. Its set is
// that of the others, if there are any.
func (p *planner) ask(free, others []string) learn.Arm {
	drafters := slices.Sorted(slices.Values(append(free[:len(free):len(free)], others...)))
	a := learn.Arm{Name: drafters[0], Drafters: drafters, Vote: tandem.VoteNone, Set: setOf(others)}
	if len(others) == 0 {
		a.Set = setOf(free)
	}
	if len(drafters) > 1 {
		a.Name, a.Vote = "vote of "+strings.Join(drafters, ", "), p.vote
	}
	return a
}

func (p *planner) Learn(o *Outcome) {
	if o.Lossy {
		return // something was lost; that is no way's fault
	}
	v, wall := o.Verdict, o.Wall
	wall += p.own.round(o, p.arm.Drafters, p.shared.extra(max(v.Rows, v.Nodes), o.Prompts))
	own := time.Duration(float64(wall) / (1 + p.tickets))
	p.hindsights.committed(v.Base+tandem.Position(o.Tokens), own)
	for _, d := range o.Drafts {
		wall = min(wall, o.Wall-d.Extra) // to catch up costs once, not every round
	}
	shape := p.learnParts(o)
	measure(&p.round, wall)
	p.brought, p.during = p.brought*0.9+float64(o.Tokens), p.during*0.9+wall.Seconds()
	p.rows += (float64(max(v.Rows-v.Nodes, 0)) - p.rows) / 8
	p.tickets += (float64(max(v.Batch-1, 0)) - p.tickets) / 8
	good := p.good(o.Drafts)
	p.choices.Observe(p.arm, shape, o.AtEnd || good)
	if good || p.arm.Set == p.apart+others {
		p.witness(p.apart, shape, o.AtEnd)
	}
	for _, d := range o.Idle {
		p.record(d.Drafter, d.Got.Tree, v.Tokens)
		p.alone(d, o)
	}
	if !o.Judged {
		for _, d := range o.Drafts {
			if d.Got.Tree.Len() < 2 { // it had nothing, which is known without a verdict
				p.alone(d, o)
			}
		}
		return
	}
	if o.Merged {
		p.merged(o)
	}
	for _, d := range o.Drafts {
		p.record(d.Drafter, d.Got.Tree, v.Tokens)
	}
}

// merged learns from a tree that was made of several drafts.
func (p *planner) merged(o *Outcome) {
	committed := o.Verdict.Tokens
	if p.mix == nil {
		p.record("", o.Tree, committed)
	} else {
		trees := o.trees()
		p.mix.Record(trees, committed)
		p.shared.mixed(trees, committed)
	}
	if p.good(o.Drafts) {
		return
	}
	for _, d := range o.Drafts {
		p.alone(d, o)
	}
}

// alone learns what a drafter's own way would have brought in a round of another.
func (p *planner) alone(d Draft, o *Outcome) {
	x := learn.Shape{Accepted: float64(spec.Held(d.Got.Tree, o.Verdict.Tokens)), Depth: depthOf(d.Got.Tree),
		Draft: p.parts.passes([]string{d.Drafter}, 0, d.Got.Passes), Rows: float64(max(d.Got.Tree.Len(), 1))}
	if d.Got.Passes == 0 {
		x.Draft = p.parts.passes([]string{d.Drafter}, d.Got.Busy, 0)
	}
	if d.Drafter == p.apart {
		p.witness(p.apart+others, x, o.AtEnd)
	}
	p.witness(d.Drafter, x, o.AtEnd)
}

// witness learns what a way other than that of the round would have brought.
func (p *planner) witness(set string, x learn.Shape, atEnd bool) {
	if !atEnd && set != p.arm.Set {
		p.choices.Witness(learn.Arm{Set: set, Drafters: []string{set}, Idle: set == p.apart+others}, x)
	}
}

// Hear implements Strategy.
func (p *planner) Hear(drafter string, base tandem.Position, h tandem.Hindsight, spent time.Duration) {
	rows := int(base - p.hindsights.of[drafter].base)
	p.hindsights.hear(drafter, base, h, spent)
	if of := p.parts.drafter(drafter); spent > 0 && (of.model || of.draft == 0) {
		one := time.Duration(float64(spent) / p.rowsCost(rows))
		p.each(func(x *parts) { measure(&x.drafter(drafter).pass, one) })
	}
}

// recall tells the choice what each way would have brought on the latest tokens that the hindsights of all drafters cover. Where drafters
// that cost nothing are asked as well, a token counts if one of them or the other drafter would have guessed it. A tree of all drafters
// is assumed to bring what its best drafter does with those: rounds show how much more it is. The chains are about as deep as the
// drafters' trees: those of a drafter that is sure of a copy grow deeper, and so it is expected to bring more.
func (p *planner) recall(ready, free []string, arms []learn.Arm) {
	hindsights, output := p.hindsights.together(ready)
	own, rounds := map[string]float64{}, map[string]float64{}
	common, depth := uint64(0), 0
	for _, d := range free {
		if h := hindsights[d]; h.Tokens > 0 {
			common, depth = common|h.Hits, max(depth, p.depth(d))
		}
	}
	for _, d := range ready {
		if h := hindsights[d]; h.Tokens > 0 {
			if p.apart == "" { // else it is asked where the others have nothing
				h.Hits |= common
			}
			own[d], rounds[d] = spec.Foretold(h, output, max(depth, p.depth(d)))
		}
	}
	for _, a := range arms[1:] {
		best, known := 0.0, 0.0
		for _, d := range a.Drafters {
			if p.apart != "" && a.Set != p.apart && slices.Contains(free, d) {
				continue
			}
			if rounds[d] == 0 && !slices.Contains(free, d) {
				best, known = 0, 0 // the others' hindsight would stand for a drafter that was not told of the text lately
				break
			}
			if own[d] >= best {
				best, known = own[d], rounds[d]
			}
		}
		p.choices.Recall(a, best, known)
	}
}

// accept returns tandem.Plan.Accept for a drafter's nodes; nil: as its draft model says.
func (p *planner) accept(name string) []float32 {
	if c := p.chances[name]; c != nil {
		return c.Accept()
	}
	return nil
}

// record learns how a tree fared, for this session and for later ones.
func (p *planner) record(name string, t tandem.Tree, committed []tandem.Token) {
	if t.Len() < 2 {
		return
	}
	l := p.shared
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.chances) > mostNames {
		clear(l.chances) // names that came and went
	}
	for _, of := range []map[string]*learn.Calibration{p.chances, l.chances} {
		if of[name] == nil {
			of[name] = learn.NewCalibration(l.rules.Tuning.Calibration)
		}
		of[name].Record(t, committed)
	}
}

func (p *planner) HandOn() {
	l := p.shared
	l.mu.Lock()
	defer l.mu.Unlock()
	l.round = p.round
	p.choices.Merge(l.planner)
	if n := len(p.hindsights.of); n > 0 {
		l.output = average(l.output, float64(p.hindsights.base-p.hindsights.begin))
	}
}

// rate returns the tokens per second that a further pass of a draft model must bring, about as many as the latest rounds; 0: there was
// none.
func (p *planner) rate() float64 {
	if p.during == 0 {
		return 0
	}
	return p.tuning.Choice.Floor * p.brought / p.during
}

package strategy

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/learn"
)

// planner is the default strategy: each round it takes the way to draft that has brought the most tokens per
// time, plain decoding included (learn.Planner). It leaves width and depth to the drafter, which knows from
// costs and acceptance how far it pays (spec.Cut, spec.Children). Drafters that cost next to nothing, such as lookup, are asked in every
// round with a draft. So the ways are: not at all, those alone, those with each of the other drafters, and all of them. Several
// drafts become one tree whose chances are learned (spec.Mix).
//
// Drafting ahead nearly always pays, so every way includes it; only the way in use is also tried without,
// so that a machine on which it does not pay loses little, and learning stays cheap.
type planner struct {
	shared     *Shared
	tuning     *learn.Tuning // the gateway's, never changed
	vote       tandem.Vote   // of several; VoteNone: never
	ahead      bool
	mix        *spec.Mix // nil: drafts are merged by the drafters' weights, which stay
	choices    *learn.Planner
	chances    map[string]*learn.Calibration
	reach      map[string]float64       // how deep each drafter's latest trees were; see recall
	nodes      map[string]float64       // mean rows of each way's trees
	price      map[string]time.Duration // running mean of a drafter's time for a tree; 0: unknown
	round      time.Duration            // the same of a round
	arm        learn.Arm
	base       string        // the way in use, as it is named with drafting ahead
	rows       float64       // of others in the same pass, and
	tickets    float64       // their tickets, running means
	rest       time.Duration // running mean of a round without draft and pass
	drafted    int           // rounds with a draft
	sampled    bool
	chosen     int             // choices so far, since HandOn
	uses       map[string]*use // what they promised with and without a drafter
	without    []string        // drafters that the session does without
	hindsights hindsights
	own        own
}

// inTurn ends the name of a way without drafting ahead.
const inTurn = " in turn"

func newPlanner(l *Shared, vote tandem.Vote, adaptive, ahead, sampled bool) *planner {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &planner{shared: l, tuning: &l.rules.Tuning, vote: vote, ahead: ahead, sampled: sampled,
		choices: learn.NewPlanner(l.rules.Planner, l.rules.Tuning.Planner, l.planner), chances: map[string]*learn.Calibration{},
		reach: map[string]float64{}, nodes: map[string]float64{}, price: maps.Clone(l.prices), round: l.round,
		hindsights: newHindsights(l.rules.Tuning), own: newOwn(l.rules.Tuning.SelfDrafts), uses: map[string]*use{}}
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
	p.recall(ready, arms)
	p.foresee(arms)
	var why learn.Reason
	p.arm, why = p.choices.Choose(arms)
	if why == learn.ReasonBest || why == learn.ReasonHysteresis {
		p.base = strings.TrimSuffix(p.arm.Name, inTurn)
	}
	if strings.TrimSuffix(p.arm.Name, inTurn) == p.base {
		p.own.use(p.arm.Drafters)
	}
	p.count(ready)
	out := Decision{Vote: p.arm.Vote, Nodes: bounds.Nodes, Choice: p.arm.Name, Reason: string(why)}
	if len(ready) > 1 && !bounds.Plain() {
		out.Follow = p.hindsights.follow(ready, p.arm.Drafters, p.follows)
	}
	if len(p.arm.Drafters) == 0 {
		return out
	}
	costs := tandem.Plan{Round: p.rest}
	slope := 1.0
	if p.drafted++; p.drafted%p.tuning.Choice.WideEvery == p.tuning.Choice.WideEvery/2 {
		slope = p.tuning.Choice.WideSlope
	}
	costs.Verify, costs.Others = p.shared.curve(bounds.Nodes, int(p.rows+p.own.rows+0.5), slope)
	costs.Others *= p.tickets
	for _, d := range ready {
		if slices.Contains(p.arm.Drafters, d) {
			own := costs
			own.Accept = p.accept(d)
			out.Asks = append(out.Asks, Ask{d, tandem.Proposal{Bounds: bounds, Growth: tandem.GrowBest, Plan: own, Ahead: p.arm.Ahead}})
		}
	}
	if len(out.Asks) > 1 {
		out.Cut, out.Mix = costs, p.mix
		if p.mix == nil {
			out.Cut.Accept = p.accept("")
		}
	}
	return out
}

func (p *planner) Explain(Decision) string { return p.choices.Explain() }

// follows returns how long a drafter takes to be told what was committed; 0 if that is not known.
func (p *planner) follows(drafter string) time.Duration {
	return p.price[drafter] / time.Duration(p.tuning.Hindsight.Passes)
}

// arms returns the ways to spend a round.
func (p *planner) arms(ready []string, bounds tandem.Bounds) []learn.Arm {
	arms := []learn.Arm{{Name: Plain, Vote: tandem.VoteNone}}
	if bounds.Plain() {
		return arms
	}
	free, dear := p.prices(ready)
	if len(free) > 0 {
		arms = append(arms, p.ask(free))
	}
	for _, d := range dear {
		arms = append(arms, p.ask(append(free[:len(free):len(free)], d)))
	}
	if len(dear) > 1 && p.vote != tandem.VoteNone {
		arms = append(arms, p.together(ready, free, dear)...)
	}
	if p.ahead {
		for _, a := range arms[1:] {
			if a.Name == p.base {
				a.Name, a.Ahead = a.Name+inTurn, false
				return append(arms, a)
			}
		}
	}
	return arms
}

// together returns the ways that ask several of the drafters that cost something: all, and those that cost about the same without the dear
// ones, so that a drafter that costs too much does not spoil what the others bring together. The target's own ways come and go from round
// to round; so each of these ways to spend a round is also there without them, and stays.
func (p *planner) together(ready, free, dear []string) (arms []learn.Arm) {
	byPrice := slices.Clone(dear)
	slices.SortStableFunc(byPrice, func(a, b string) int { return cmp.Compare(p.price[a], p.price[b]) })
	add := func(set []string) {
		if len(set) < 2 {
			return
		}
		in := func(d string) bool { return slices.Contains(free, d) || slices.Contains(set, d) }
		arm := p.ask(slices.DeleteFunc(slices.Clone(ready), func(d string) bool { return !in(d) }))
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
	return p.price[b] > 0 && float64(p.price[a]) > max(p.tuning.Choice.Dearer*float64(p.price[b]), p.tuning.Choice.Felt*float64(p.round))
}

// prices divides drafters into those whose drafts cost next to nothing and the others. Where drafts are never merged, none is free.
func (p *planner) prices(ready []string) (free, dear []string) {
	for _, d := range ready {
		if price := p.price[d]; price > 0 && float64(price) < p.tuning.Choice.Free*float64(p.round) && p.vote != tandem.VoteNone {
			free = append(free, d)
		} else {
			dear = append(dear, d)
		}
	}
	return free, dear
}

// pays notes what a draft has cost.
func (p *planner) pays(drafter string, price time.Duration) {
	l := p.shared
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.prices) > mostNames {
		clear(l.prices) // names that came and went
	}
	for _, of := range []map[string]time.Duration{p.price, l.prices} {
		of[drafter] = learn.Mean(of[drafter], price)
	}
}

// ask returns the way that asks these drafters, whose order does not count. Those with a process draft at the same time, the target's own
// ways one after the other.
func (p *planner) ask(drafters []string) learn.Arm {
	drafters = slices.Sorted(slices.Values(drafters))
	a := learn.Arm{Drafters: drafters, Vote: tandem.VoteNone, Ahead: p.ahead}
	guesses := time.Duration(0)
	for _, d := range drafters {
		if isSelfDraft(d) {
			guesses += p.price[d]
		} else {
			a.Price = max(a.Price, p.price[d])
		}
	}
	a.Price += guesses
	if a.Name = drafters[0]; len(drafters) > 1 {
		a.Name, a.Vote = "vote of "+strings.Join(drafters, ", "), p.vote
	}
	return a
}

// twin returns the way in use with drafting ahead switched.
func (p *planner) twin() learn.Arm {
	a := p.arm
	if a.Ahead = !a.Ahead; a.Ahead {
		a.Name = strings.TrimSuffix(a.Name, inTurn)
	} else {
		a.Name += inTurn
	}
	return a
}

// accept returns tandem.Plan.Accept for a drafter's nodes; nil: as its draft model says.
func (p *planner) accept(name string) []float32 {
	if c := p.chances[name]; c != nil {
		return c.Accept()
	}
	return nil
}

func (p *planner) Learn(o *Outcome) {
	if o.Lossy {
		return // something was lost; that is no way's fault
	}
	v, wall := o.Verdict, o.Wall
	wall += p.own.round(o, p.arm.Drafters, p.shared.extra(max(v.Rows, v.Nodes), o.Prompts))
	usual := wall
	own := time.Duration(float64(wall) / (1 + p.tickets))
	p.hindsights.committed(v.Base+tandem.Position(o.Tokens), own)
	for _, d := range o.Drafts {
		wall = min(wall, usual-d.Extra) // to catch up costs once, not every round
	}
	for _, d := range o.Idle {
		p.pays(d.Drafter, d.Got.Busy+p.own.rowsOf(d.Drafter))
	}
	p.choices.Observe(p.arm, o.Tokens, wall, o.AtEnd)
	if rows := float64(v.Nodes); len(p.arm.Drafters) > 0 {
		p.nodes[p.arm.Name] = average(p.nodes[p.arm.Name], rows)
	}
	if p.ahead && len(p.arm.Drafters) > 0 && !o.AtEnd {
		p.choices.Witness(p.twin(), o.Tokens) // the same drafts: only their time differs
	}
	p.rest, p.round = learn.Mean(p.rest, o.Rest), learn.Mean(p.round, wall)
	p.rows += (float64(max(v.Rows-v.Nodes, 0)) - p.rows) / 8
	p.tickets += (float64(max(v.Batch-1, 0)) - p.tickets) / 8
	for _, d := range o.Drafts {
		p.pays(d.Drafter, d.Got.Busy+p.own.rowsOf(d.Drafter))
		p.shared.passed(d.Drafter, d.Got)
	}
	for _, d := range o.Idle {
		if p.record(d.Drafter, d.Got.Tree, v.Tokens); !o.AtEnd {
			p.choices.Witness(p.alone(d.Drafter), spec.Held(d.Got.Tree, v.Tokens)+1)
		}
	}
	if !o.Judged {
		return
	}
	if o.Merged {
		p.merged(o)
	}
	for _, d := range o.Drafts {
		p.record(d.Drafter, d.Got.Tree, v.Tokens)
		p.reach[d.Drafter] = max(p.tuning.Hindsight.Fade*p.reach[d.Drafter], float64(d.Got.Depth))
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
	for _, d := range o.Drafts {
		if !o.AtEnd {
			p.choices.Witness(p.alone(d.Drafter), spec.Held(d.Got.Tree, committed)+1)
		}
	}
}

// Hear implements Strategy.
func (p *planner) Hear(drafter string, base tandem.Position, h tandem.Hindsight, spent time.Duration) {
	p.hindsights.hear(drafter, base, h, spent)
	if p.price[drafter] == 0 && spent > 0 {
		p.price[drafter] = time.Duration(p.tuning.Hindsight.Passes) * spent
	}
}

// recall tells the choice what each way would have brought on the latest tokens that the hindsights of all drafters cover. Where drafters
// that cost nothing are asked as well, a token counts if one of them or the other drafter would have guessed it. A tree of all drafters
// is assumed to bring what its best drafter does with those: rounds show how much more it is. The chains are about as deep as the
// drafters' trees: those of a drafter that is sure of a copy grow deeper, and so it is expected to bring more.
func (p *planner) recall(ready []string, arms []learn.Arm) {
	hindsights, output, news := p.hindsights.together(ready)
	if !news {
		return
	}
	free, _ := p.prices(ready)
	own, rounds := map[string]float64{}, map[string]float64{}
	common, depth := uint64(0), 0
	for _, d := range free {
		if h := hindsights[d]; h.Tokens > 0 {
			common, depth = common|h.Hits, max(depth, p.depth(d))
		}
	}
	for _, d := range ready {
		if h := hindsights[d]; h.Tokens > 0 {
			h.Hits |= common
			own[d], rounds[d] = spec.Foretold(h, output, max(depth, p.depth(d)))
		}
	}
	for _, a := range arms {
		best, known := 0.0, 0.0
		if slices.ContainsFunc(a.Drafters, func(d string) bool { return isSelfDraft(d) && rounds[d] == 0 }) {
			continue // the others' hindsight would stand for a way that was not asked lately
		}
		for _, d := range a.Drafters {
			if rounds[d] > 0 && own[d] >= best {
				best, known = own[d], rounds[d]
			}
		}
		if known > 0 {
			p.choices.Recall(a, best, known)
		}
	}
}

// foresee tells the choice how long rounds would take now: a draft, a pass of as many rows as the way's trees had, and what is neither.
func (p *planner) foresee(arms []learn.Arm) {
	if p.rest <= 0 {
		return
	}
	for _, a := range arms {
		if rows := p.nodes[a.Name]; len(a.Drafters) == 0 || rows > 0 {
			if verify := p.shared.pass(int(p.rows + max(rows, 1) + 0.5)); verify > 0 {
				p.choices.Foresee(a, p.rest+a.Price+verify)
			}
		}
	}
}

// depth returns the depth of the chains that a drafter's hindsight is replayed with.
func (p *planner) depth(drafter string) int {
	return max(int(p.reach[drafter]), p.tuning.Hindsight.Reach)
}

// alone returns the way that asks this drafter only.
func (p *planner) alone(drafter string) learn.Arm { return p.ask([]string{drafter}) }

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
	l.worth.learn(p.uses, p.without, p.chosen)
	p.uses, p.chosen = map[string]*use{}, 0
}

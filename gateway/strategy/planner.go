package strategy

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/worth"
)

// planner is the default strategy. It lists the ways to spend a round, feeds spec/worth with what rounds show, and does what that chooses.
//
// Two choices make a round. One is whether the free drafters, which cost next to nothing, are asked; the other which of the models are,
// where the free ones know little. The free ones draft first. Then their trees are known, and the models are asked only if they promise
// more than those are worth in the same time (Wanted). So what is known of models is what they bring in such rounds. Width and depth are
// left to the drafters, which know from costs and chances how far they pay (spec.Cut, spec.Children). Several drafts become one tree whose
// chances are learned (spec.Mix).
type planner struct {
	shared         *Shared
	vote           tandem.Vote // of several; VoteNone: never
	goAhead        bool        // ways that draft ahead are allowed
	mix            *spec.Mix   // nil: drafts are merged by the drafters' weights, which stay
	chances        map[string]*worth.Calibration
	yields         worth.Yields
	parts          *worth.Parts
	credit         worth.Credit    // for looks
	asks, models   worth.Choice    // whether the free drafters are asked; the models where those know little
	second         *worth.Second   // whether the models are asked beside the free drafts; nil: that was not decided
	free           []string        // drafters of this round
	way, before    worth.Way       // the models of this round, and of the one before
	lags           map[string]int  // by drafter asked in this round: committed tokens that it has to read first
	warm           map[string]bool // drafters that have drafted in this session
	text           text
	rows, tickets  float64 // of others in the same pass, running means
	tokens, during float64 // of the latest rounds, those of others included, and their seconds: earlier ones count less
	prompt, output int     // tokens of the prompt, most tokens to come
	expects        float64 // mean tokens of earlier outputs
}

const (
	freeSet = "free"   // the set of the free drafters
	ahead   = " ahead" // ends the name of a way that drafts ahead
)

func newPlanner(o options) Strategy {
	l := o.shared
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &planner{shared: l, vote: o.vote, goAhead: o.ahead, prompt: o.prompt, output: o.output, chances: map[string]*worth.Calibration{},
		yields: l.learned().yields.Inherit(), parts: l.parts.Clone(), expects: l.learned().output, warm: map[string]bool{},
		lags: map[string]int{}, credit: worth.Credit(worth.Tuned.Credit),
		text: text{of: map[string]report{}}}
	if o.adaptive {
		p.mix = l.learned().mix.Clone()
	}
	return p
}

func (p *planner) Several() bool { return true }

func (p *planner) Decide(ready []string, bounds tandem.Bounds) Decision {
	p.before, p.second = p.way, nil
	plain, free, models := p.ways(ready, bounds)
	others := p.tickets * p.shared.usual()
	behind, credit := p.behind(models), float64(p.credit)
	for _, cost := range behind {
		credit -= cost
	}
	p.asks = worth.Choose(append([]worth.Way{plain}, free...), others, credit)
	p.models = worth.Choose(append([]worth.Way{plain}, models...), others, credit)
	p.way = p.models.Way()
	out := Decision{Vote: tandem.VoteNone, Nodes: bounds.Nodes, Choice: Plain, Reason: string(p.models.Reason), Follow: p.follow(behind)}
	costs := tandem.Plan{Round: p.parts.Drafted}
	costs.Verify, costs.Others = p.shared.curve(bounds.Nodes, p.beside())
	costs.Others *= p.tickets
	clear(p.lags)
	ask := func(d string) {
		p.lags[d] = p.parts.Drafter(d).Reads(p.text.lag(d))
		own := costs
		own.Accept = p.accept(d)
		out.Asks = append(out.Asks, Ask{d, tandem.Proposal{Bounds: bounds, Growth: tandem.GrowBest, Plan: own, Ahead: p.way.Ahead}})
	}
	if p.asks.Way().Name == Plain {
		p.free = p.free[:0]
	}
	for _, d := range p.free {
		ask(d)
	}
	for _, d := range p.way.Drafters {
		ask(d)
	}
	switch {
	case len(out.Asks) > 1:
		out.Vote, out.Cut, out.Mix = p.vote, costs, p.mix
		if p.mix == nil {
			out.Cut.Accept = p.accept("")
		}
		fallthrough
	case len(out.Asks) > 0:
		out.Choice = p.named(out.Asks)
		out.Without = p.named(out.Asks[:len(p.free)])
	}
	if len(p.free) > 0 {
		out.Later = len(p.way.Drafters)
	}
	return out
}

// named returns the choice, as Stats.Choices counts it, of a round that asks those drafters.
func (p *planner) named(asks []Ask) string {
	names := make([]string, len(asks))
	for i, k := range asks {
		names[i] = k.Drafter
	}
	slices.Sort(names)
	name := strings.Join(names, ", ")
	if len(names) > 1 {
		name = "vote of " + name
	}
	if p.way.Ahead && len(asks) > len(p.free) {
		name += ahead
	}
	return name
}

func (p *planner) Explain(Decision) string {
	out := p.models.Explain() + " | " + p.asks.Explain()
	if p.second != nil {
		out += " | " + p.second.Explain()
	}
	return fmt.Sprintf("%s | others %.2f, credit %.2f", out, p.models.Others, float64(p.credit))
}

// Wanted implements Strategy. It compares a round with the free drafts alone, cut to the nodes that pay, with one that asks the models too.
func (p *planner) Wanted(drafts []Draft) bool {
	t, plan, nodes := tandem.Tree{}, tandem.Plan{Round: p.parts.Drafted}, 1
	trees := (&Outcome{Drafts: drafts}).trees()
	for _, x := range trees {
		nodes += x.Tree.Len()
	}
	plan.Verify, _ = p.shared.curve(nodes, p.beside())
	if len(trees) > 1 && p.mix != nil {
		t = p.mix.Merge(trees, nodes)
	} else {
		for _, x := range trees {
			if x.Tree.Len() > t.Len() {
				t, plan.Accept = x.Tree, p.accept(x.Drafter)
			}
		}
	}
	chances := spec.Kept(t, plan)
	s := &worth.Second{Chances: chances, Others: p.models.Others, Both: p.way, Alone: worth.Way{Name: freeSet}}
	for _, c := range chances {
		s.Alone.Accepted += c
	}
	s.Alone.Rows = float64(len(chances) + 1)
	s.Alone.Time = worth.Time{Rest: p.parts.Drafted.Seconds(), Left: 1, Slow: 1, Verify: p.verify(s.Alone.Rows)}
	if p.models.Ways[p.models.Best].Set != p.way.Set { // a look at what may bring more
		s.Both.Accepted += s.Both.Doubt
	}
	if with := s.Both.Beside(s.Alone.Accepted, len(chances)+1, p.verify); with.Rate(s.Others) > s.Both.Rate(s.Others) {
		s.Both = with // else the free drafts' nodes will be cut
	}
	p.second = s
	wanted := s.Decide(p.rate())
	p.text.run(wanted)
	return wanted
}

// beside returns the rows of others in the same pass.
func (p *planner) beside() int { return int(math.Round(p.rows)) }

// verify returns the seconds of a pass with so many rows of the session, in the mean.
func (p *planner) verify(rows float64) float64 {
	whole, part := math.Modf(max(rows, 1))
	few := p.shared.pass(int(whole) + p.beside()).Seconds()
	if part == 0 {
		return few
	}
	return few + part*(p.shared.pass(int(whole)+1+p.beside()).Seconds()-few)
}

// ways returns the ways to spend a round: plain, that of the free drafters if there are any, and those of models.
func (p *planner) ways(ready []string, bounds tandem.Bounds) (plain worth.Way, free, models []worth.Way) {
	plain = worth.Way{Name: Plain, Expected: worth.Expected{Known: true}}
	plain.Time = worth.Time{Rest: p.parts.Plain.Seconds(), Left: 1, Slow: 1, Verify: p.verify(1)}
	p.free = p.free[:0]
	if bounds.Plain() {
		return plain, nil, nil
	}
	var dear []string
	for _, d := range ready {
		if p.isFree(d) && p.vote != tandem.VoteNone {
			p.free = append(p.free, d)
		} else {
			dear = append(dear, d)
		}
	}
	if len(p.free) > 0 {
		w := worth.Way{Name: freeSet, Set: freeSet, Expected: p.yields.Of(freeSet)}
		p.price(&w)
		free = append(free, w)
	}
	p.recall(dear)
	for _, d := range dear {
		models = p.add(models, []string{d})
	}
	if len(dear) > 1 && p.vote != tandem.VoteNone {
		models = p.add(models, dear)
	}
	return plain, free, models
}

// recall tells the choice what each model would have brought on the latest tokens that its hindsight covers.
func (p *planner) recall(models []string) {
	output := max(int(p.text.base-p.text.begin), 0)
	for _, d := range models {
		r := p.text.of[d]
		var accepted, rounds, rows float64
		if h := r.hindsight; h.Tokens > 0 {
			depth := 2
			if e := p.yields.Of(d); e.Passes > 0 {
				depth = max(int(math.Round(e.Passes)), 1)
			}
			accepted, rounds = spec.Foretold(h, output-int(p.text.base-r.base), depth)
			rows = float64(depth + 1)
		}
		p.yields.Recall(d, accepted, rounds, rows)
	}
}

// add appends the ways that ask those models.
func (p *planner) add(ways []worth.Way, drafters []string) []worth.Way {
	set := setOf(drafters)
	w := worth.Way{Name: set, Set: set, Drafters: slices.Clone(drafters), Expected: p.yields.Of(set)}
	p.price(&w)
	ways = append(ways, w)
	if a := p.parts.Ahead(set); p.goAhead && a.Idle < neverAhead && (p.before.Set == set || a.Left > 0) {
		w.Name, w.Ahead = w.Name+ahead, true
		p.price(&w)
		ways = append(ways, w)
	}
	return ways
}

// neverAhead are the rounds without anything drafted ahead of them that show that nothing ever will be.
const neverAhead = worth.Prior

// isFree reports whether a draft costs next to nothing: a self-draft's, which was paid for in the round before, and that of a drafter
// without a model. A drafter that was free stays so until it costs twice as much, so that a busy machine does not change the ways.
func (p *planner) isFree(name string) bool {
	if isSelfDraft(name) {
		return true
	}
	d, most := p.parts.Drafter(name), worth.Tuned.Free*p.shared.pass(1).Seconds()
	if d.Free {
		most *= 2
	}
	d.Free = !d.Model && d.Pass.Seconds() < most || !d.Model && !d.Asked
	return d.Free
}

// price completes a way by the time of its rounds.
func (p *planner) price(w *worth.Way) {
	rest := p.parts.Plain
	if p.parts.Drafted > 0 {
		rest = p.parts.Drafted
	}
	if w.Passes == 0 && len(w.Drafters) > 0 {
		w.Passes = p.depth(w)
		w.Rows = 1 + w.Passes
	}
	var away, read, once, unit time.Duration
	for _, name := range w.Drafters {
		d, usual := p.parts.Drafter(name), int(w.Accepted+1)
		unit, away = max(unit, d.Pass), max(away, d.Away)
		read = max(read, d.Time(usual, p.shared.pass)-d.Pass)
		once = max(once, d.Time(d.Reads(p.text.lag(name)), p.shared.pass)-d.Time(usual, p.shared.pass))
	}
	w.Time = worth.Time{Rest: (rest + away).Seconds(), Draft: w.Passes * unit.Seconds(), Verify: p.verify(w.Rows), Left: 1, Slow: 1,
		Read: read.Seconds() + once.Seconds()/p.text.stay()}
	if a := *p.parts.Ahead(w.Set); w.Ahead && a.Left > 0 && a.Slow > 0 {
		w.Left, w.Slow = a.Left, a.Slow
	} else {
		w.Time.Free = w.Ahead // unless it was seen, no gain is expected
	}
}

// depth returns how many passes a set of drafters is expected to take that was never asked. It is the length of the chain with the most
// tokens a second, where a token is as often right as the tokens expected of a round say.
func (p *planner) depth(w *worth.Way) float64 {
	right := w.Accepted / (1 + w.Accepted)
	unit := time.Duration(1)
	for _, d := range w.Drafters {
		unit = max(unit, p.parts.Drafter(d).Pass)
	}
	best, most, tokens, reach := 1, 0.0, 1.0, 1.0
	for n := 1; n <= tandem.MaxHindsight; n++ {
		reach *= right
		tokens += reach
		took := p.parts.Drafted + time.Duration(n)*unit + p.shared.pass(n+1+p.beside())
		if r := tokens / took.Seconds(); r > most {
			best, most = n, r
		}
	}
	return float64(best)
}

// rate returns the tokens a second of the latest rounds. Tokens of other sessions in the same passes count.
func (p *planner) rate() float64 {
	if p.during == 0 {
		return (1 + p.tickets) / max((p.parts.Plain+p.shared.pass(1+p.beside())).Seconds(), 1e-9)
	}
	return p.tokens / p.during
}

// behind returns the models that have not been told lately what was committed, and for each what telling it costs, in tokens. It leaves out
// those for which that is more than half of what the credit has earned meanwhile.
func (p *planner) behind(ways []worth.Way) map[string]float64 {
	out := map[string]float64{}
	for _, w := range ways {
		lag := p.text.lag(w.Set)
		if len(w.Drafters) != 1 || lag < worth.Prior {
			continue
		}
		cost := p.rate() * p.parts.Drafter(w.Set).Time(lag, p.shared.pass).Seconds()
		if cost <= p.shared.rules.Explore*float64(lag)/2 {
			out[w.Set] = cost
		}
	}
	return out
}

// follow returns which of the models that are behind and not asked in this round are told what was committed: as many as the credit pays
// for.
func (p *planner) follow(behind map[string]float64) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(behind)) {
		if cost := behind[name]; !slices.Contains(p.way.Drafters, name) && cost <= float64(p.credit) {
			p.credit.Pay(cost)
			list = append(list, name)
		}
	}
	return list
}

// accept returns tandem.Plan.Accept for a drafter's nodes; nil: as its draft model says.
func (p *planner) accept(name string) []float32 {
	if c := p.chances[name]; c != nil {
		return c.Accept()
	}
	return nil
}

// isSelfDraft reports whether a drafter's name is that of a self-draft.
func isSelfDraft(name string) bool { return slices.Contains(tandem.SelfDrafts(), name) }

// setOf returns the name of a set of drafters, whose order does not count.
func setOf(drafters []string) string {
	return strings.Join(slices.Sorted(slices.Values(drafters)), ", ")
}

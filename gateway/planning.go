package gateway

import (
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// planning is the planner: each round it takes the way to draft that has brought the most tokens per
// time, plain decoding included (spec.Planner), and leaves width and depth to whoever drafts, who knows from
// costs and acceptance how far it pays (spec.Cut, spec.Worth). The ways are: not at all, each drafter
// alone, and, with several, all of them in one tree.
//
// Drafting ahead is nearly always worth it, so every way has it; only the way in use is also tried without,
// so that a machine on which it costs more than it brings loses little, and learning stays cheap.
type planning struct {
	g        *Gateway
	vote     tandem.Vote // of all; VoteNone: never
	ahead    bool
	adaptive bool // weights move
	weights  *spec.Weights
	planner  *spec.Planner
	chances  map[string]*spec.Calibration
	arm      spec.Arm
	base     string        // the way in use, as it is named with drafting ahead
	rows     float64       // of others in the same pass, and
	tickets  float64       // their tickets, running means
	rest     time.Duration // running mean of a round without draft and pass
	drafted  int           // rounds with a draft
}

const (
	wideEvery = 12  // one in so many rounds with a draft is wider than costs say that it pays: see learned.curve
	wideSlope = 0.4 //
)

// inTurn is what the name of a way that goes without drafting ahead ends with.
const inTurn = " in turn"

func newPlanning(s *session, vote tandem.Vote, ahead bool) *planning {
	l := s.g.learned
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &planning{g: s.g, vote: vote, ahead: ahead, adaptive: s.req.Off&tandem.TechniqueAdaptive == 0,
		weights: s.weights, planner: spec.NewPlanner(s.g.cfg.Rules.Planner, l.planner), chances: map[string]*spec.Calibration{}}
	for name, c := range l.chances {
		p.chances[name] = c.Inherit(inherited)
	}
	return p
}

func (p *planning) several() bool { return true }

func (p *planning) decide(ready []*drafting, policy tandem.Policy) plan {
	arms := p.arms(ready, policy)
	var why string
	p.arm, why = p.planner.Choose(arms)
	if why == "best" {
		p.base = strings.TrimSuffix(p.arm.Name, inTurn)
	}
	out := plan{vote: p.arm.Vote, nodes: policy.Nodes, choice: p.arm.Name}
	if len(p.arm.Drafters) == 0 {
		return out
	}
	costs := tandem.Plan{Round: p.rest}
	slope := 1.0
	if p.drafted++; p.drafted%wideEvery == wideEvery/2 {
		slope = wideSlope
	}
	costs.Verify, costs.Others = p.g.learned.curve(policy.Nodes, int(p.rows+0.5), slope)
	costs.Others *= p.tickets
	for _, d := range ready {
		if len(p.arm.Drafters) > 1 || p.arm.Drafters[0] == d.of.Name {
			own := costs
			own.Accept = p.accept(d.of.Name)
			out.asks = append(out.asks, ask{d, tandem.Proposal{Policy: policy, Growth: tandem.GrowBest, Plan: own, Ahead: p.arm.Ahead}})
		}
	}
	if len(out.asks) > 1 {
		out.cut = costs
		out.cut.Accept = p.accept("")
	}
	return out
}

// arms returns the ways to spend a round.
func (p *planning) arms(ready []*drafting, policy tandem.Policy) []spec.Arm {
	arms := []spec.Arm{{Name: plainChoice, Vote: tandem.VoteNone}}
	if policy.Plain() {
		return arms
	}
	var names []string
	for _, d := range ready {
		names = append(names, d.of.Name)
		arm := alone(d)
		arm.Ahead = p.ahead
		arms = append(arms, arm)
	}
	if len(names) > 1 && p.vote != tandem.VoteNone {
		arms = append(arms, spec.Arm{Name: "vote of " + strings.Join(names, ", "), Drafters: names, Vote: p.vote, Ahead: p.ahead})
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

// accept returns what a drafter's nodes are worth; nil: what it says itself.
func (p *planning) accept(name string) []float32 {
	if c := p.chances[name]; c != nil {
		return c.Accept()
	}
	return nil
}

func (p *planning) learn(a *answer) {
	if a.tickets > 1 {
		return // something was lost; that is no way's fault
	}
	v, wall := a.verdict, a.wall
	for _, d := range a.drafts {
		wall = min(wall, a.wall-d.extra) // to catch up costs once, not every round
	}
	p.foresee(a)
	p.planner.Observe(p.arm, len(a.delta.Tokens), wall, a.atEnd)
	p.rest = mean(p.rest, a.coordination())
	p.rows += (float64(max(v.Rows-v.Nodes, 0)) - p.rows) / 8
	p.tickets += (float64(max(v.Batch-1, 0)) - p.tickets) / 8
	if !a.judged() {
		return
	}
	if a.merged {
		p.record("", a.tree, v.Tokens)
	}
	for _, d := range a.drafts {
		p.record(d.by.of.Name, d.got.Tree, v.Tokens)
		if !a.merged {
			continue
		}
		if !a.atEnd {
			p.planner.Witness(alone(d.by), spec.Held(d.got.Tree, v.Tokens)+1)
		}
	}
	if p.adaptive {
		a.compare(p.weights)
	}
}

// foresee tells the planner what the round's trees promised.
func (p *planning) foresee(a *answer) {
	if a.merged {
		p.planner.Expect(p.arm, spec.Expected(a.tree, a.plan.cut.Accept))
	}
	for i, k := range a.plan.asks {
		for _, d := range a.drafts {
			if d.by == k.of && d.got.Tree.LogProbs != nil {
				arm := p.arm
				if len(a.plan.asks) > 1 {
					arm = alone(k.of)
				}
				p.planner.Expect(arm, spec.Expected(d.got.Tree, a.plan.asks[i].shape.Plan.Accept))
			}
		}
	}
}

// alone is the way to ask one drafter only.
func alone(d *drafting) spec.Arm {
	return spec.Arm{Name: d.of.Name, Drafters: []string{d.of.Name}, Vote: tandem.VoteNone}
}

// record tells what became of a tree to this session and, for those that come, to all.
func (p *planning) record(name string, t tandem.Tree, committed []tandem.Token) {
	if t.Len() < 2 {
		return
	}
	l := p.g.learned
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.chances) > mostMembers {
		clear(l.chances) // names that came and went
	}
	for _, of := range []map[string]*spec.Calibration{p.chances, l.chances} {
		if of[name] == nil {
			of[name] = spec.NewCalibration()
		}
		of[name].Record(t, committed)
	}
}

func (p *planning) handOn() {
	l := p.g.learned
	if p.adaptive {
		l.handOn(p.weights)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p.planner.Merge(l.planner)
}

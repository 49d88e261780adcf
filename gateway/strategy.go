package gateway

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// strategy decides what each round of one session drafts, and learns from what came of it. A strategy
// never waits and never asks anybody; it belongs to the session's goroutine. Whatever it decides, the
// text stays the same.
//
// None fails for want of drafters: without any a round is plain, with one a vote is that one's own
// draft. All go by the request's bounds: Policy, Drafters, Vote and Off.
type strategy interface {
	// several reports whether it may ask more drafters than the first that is there.
	several() bool
	// decide returns what to draft next. ready are the drafters that can be asked, first the one to ask
	// if only one is; p is what is left of the policy within the request's budget. Either may be nothing.
	decide(ready []*drafting, p tandem.Policy) plan
	// learn takes a committed round that decide has planned.
	learn(a *answer)
	// handOn folds what it has learned into what other sessions begin with, at the session's end.
	handOn()
}

// plan is what a round is to draft.
type plan struct {
	asks   []ask       // none: nothing, the round is plain
	vote   tandem.Vote // VoteNone: the one that is asked puts the ticket; else how the drafts become one tree
	nodes  int         // of the merged tree at most, root included
	cut    tandem.Plan // what the merged tree is cut by; zero: by nodes alone
	choice string      // for Stats.Choices
}

// ask is a drafter and the shape of the tree that is wanted of it: a proposal without session and tokens.
type ask struct {
	of    *drafting
	shape tandem.Proposal
}

const plainChoice = "plain"

// poll returns a plan that asks all that are ready for trees of one shape if vote wants several drafts,
// else the first.
func poll(ready []*drafting, vote tandem.Vote, shape tandem.Proposal) plan {
	if len(ready) == 0 || shape.Policy.Plain() {
		return plan{vote: tandem.VoteNone, choice: plainChoice}
	}
	if vote == tandem.VoteNone || len(ready) == 1 {
		ready, vote = ready[:1], tandem.VoteNone
	}
	p := plan{vote: vote, nodes: shape.Policy.Nodes, asks: make([]ask, len(ready))}
	for i, d := range ready {
		p.asks[i] = ask{d, shape}
	}
	p.choice = fmt.Sprintf("%s %d/%d", p.who(), shape.Policy.Nodes, shape.Policy.Depth)
	return p
}

// who names those that are asked, for people.
func (p plan) who() string {
	switch len(p.asks) {
	case 0:
		return plainChoice
	case 1:
		return p.asks[0].of.of.Name
	}
	return fmt.Sprintf("vote of %d", len(p.asks))
}

// newStrategy returns the strategy of a session's request.
func newStrategy(s *session) strategy {
	r := s.req
	vote := func(own tandem.Vote) tandem.Vote {
		if r.Vote == "" || r.Vote == tandem.VoteAuto {
			return own
		}
		return r.Vote
	}
	adaptive := r.Off&tandem.TechniqueAdaptive == 0
	rules := s.g.cfg.Rules
	switch r.Strategy {
	case tandem.StrategyLLMCad:
		return &llmcad{vote: vote(tandem.VoteNone), alpha: spec.NewAlpha(rules.Alpha), adaptive: adaptive, branch: rules.Branch,
			ahead: r.Off&tandem.TechniqueAhead == 0}
	case tandem.StrategyMinions:
		m := &minions{g: s.g, vote: vote(tandem.VoteMajority), weights: s.weights}
		if adaptive {
			m.length = spec.NewLength(lengthWithin(rules.Length, r.Policy))
		}
		return m
	case tandem.StrategyPlanner:
		return newPlanning(s, vote(tandem.VoteTree), r.Off&tandem.TechniqueAhead == 0)
	}
	f := fixed{vote: vote(tandem.VoteNone)}
	if adaptive {
		f.weights = s.weights
	}
	return f
}

// fixed drafts trees of the policy by levels, in turn with the verifier. All that it learns is whom to
// believe when several drafts are merged.
type fixed struct {
	vote    tandem.Vote
	weights *spec.Weights // nil: they stay
}

func (f fixed) several() bool { return f.vote != tandem.VoteNone }
func (f fixed) handOn()       {}
func (f fixed) learn(a *answer) {
	if f.weights != nil && f.vote == tandem.VoteTree && a.judged() {
		a.compare(f.weights)
	}
}
func (f fixed) decide(ready []*drafting, p tandem.Policy) plan {
	return poll(ready, f.vote, tandem.Proposal{Policy: p, Growth: tandem.GrowLevels})
}

// llmcad is LLMCad (Xu et al., 2023): trees grown by the branch pacer, drafting until no branch is likelier
// than α, which moves with what is verified, and drafting on while the target verifies.
type llmcad struct {
	vote            tandem.Vote
	alpha           *spec.Alpha
	branch          float64
	adaptive, ahead bool
}

func (l *llmcad) several() bool { return l.vote != tandem.VoteNone }
func (l *llmcad) handOn()       {}

func (l *llmcad) decide(ready []*drafting, p tandem.Policy) plan {
	return poll(ready, l.vote, tandem.Proposal{Policy: p, Growth: tandem.GrowPacer, Branch: l.branch, Stop: l.alpha.Now(), Ahead: l.ahead})
}

func (l *llmcad) learn(a *answer) {
	if !l.adaptive || !a.judged() {
		return
	}
	if all, ok, confidence := bestBranch(a.tree, a.verdict.Tokens); all > 0 {
		l.alpha.Record(all, ok, confidence)
	}
}

// bestBranch returns how long the branch of t is that goes with the committed tokens furthest, and on
// from there to the likeliest leaf; how much of it was right; and the confidence of the likeliest
// leaf of all when drafting stopped (LLMCad's N_all, N_ok and Tc).
func bestBranch(t tandem.Tree, committed []tandem.Token) (all, ok int, confidence float64) {
	if len(t.LogProbs) != t.Len() {
		return 0, 0, 0
	}
	at, best := int32(0), float32(math.Inf(-1))
	inner := make([]bool, t.Len())
	for i := t.Len() - 1; i > 0; i-- {
		if !inner[i] {
			best = max(best, t.LogProbs[i])
		}
		inner[t.Parents[i]] = true
	}
	for deeper := true; deeper; {
		deeper = false
		next := int32(-1)
		for i := int(at) + 1; i < t.Len(); i++ {
			switch {
			case t.Parents[i] != at:
			case ok == all && ok < len(committed) && t.Tokens[i] == committed[ok]:
				next, deeper = int32(i), true
			case !deeper && (next < 0 || t.LogProbs[i] > t.LogProbs[next]):
				next = int32(i)
			}
		}
		if next < 0 {
			break
		}
		if deeper {
			ok++
		}
		all, at, deeper = all+1, next, true
	}
	return all, ok, math.Exp(float64(min(best, 0)))
}

// minions is Minions (Wang et al., 2024): every drafter writes a chain, the weighted majority of them is
// verified (or all of them in one tree), the drafter that was voted is rewarded or punished, and
// the length of the chains follows the slope of the verification time per token. Drafts of one session
// overlap the verification of others, as in the paper; nobody drafts ahead.
type minions struct {
	g       *Gateway
	vote    tandem.Vote
	weights *spec.Weights
	length  *spec.Length // nil: the policy's depth
	asked   int          // the length of the latest chains
}

func (m *minions) several() bool { return m.vote != tandem.VoteNone }

func (m *minions) handOn() {
	if m.length != nil {
		m.g.learned.handOn(m.weights)
	}
}

func (m *minions) decide(ready []*drafting, p tandem.Policy) plan {
	s := p.Depth
	if m.length != nil {
		s = min(s, m.length.Now())
	}
	m.asked = min(s, p.Nodes-1)
	chains := poll(ready, m.vote, tandem.Proposal{Policy: tandem.Policy{Nodes: m.asked + 1, Depth: m.asked, Width: 1}})
	if chains.vote == tandem.VoteTree {
		chains.nodes = p.Nodes
	}
	return chains
}

func (m *minions) learn(a *answer) {
	if m.length == nil || !a.judged() {
		return
	}
	if a.plan.vote == tandem.VoteTree {
		a.compare(m.weights)
	} else if a.voted < len(a.drafts) { // of a majority, only the voted one's output was verified
		d := a.drafts[a.voted]
		m.weights.Record(d.by.of.Name, spec.Held(d.got.Tree, a.verdict.Tokens), d.got.Tree.Len()-1)
	}
	m.length.Record(m.asked, a.verdict.Busy, len(a.verdict.Tokens))
}

// compare weighs those that drafted for the round's tree by how much of what was committed each had known.
func (a *answer) compare(w *spec.Weights) {
	if !a.merged {
		return
	}
	held := make(map[string]int, len(a.drafts))
	for _, d := range a.drafts {
		held[d.by.of.Name] = spec.Held(d.got.Tree, a.verdict.Tokens)
	}
	w.Compare(held)
}

// lengthWithin returns the rule for lengths that a policy allows.
func lengthWithin(r spec.LengthRule, p tandem.Policy) spec.LengthRule {
	most := min(r.Most, max(p.Depth, 1), max(p.Nodes-1, 1))
	r.Most, r.Start = most, min(r.Start, most)
	return r
}

// vote has the round's drafters draft at the same time and merges what they say. It waits for each no
// longer than one Propose may take, and once one has answered, for the others no longer than they are worth.
func (s *session) vote(ctx context.Context, q question, a *answer) {
	told := make(chan *call, len(a.plan.asks))
	calls := make([]*call, len(a.plan.asks))
	begun := time.Now()
	for i, k := range a.plan.asks {
		calls[i] = k.of.begin(ctx, s.wish(q, k, true), k.of.deadline(), told)
	}
	var enough <-chan time.Time
	if d := s.patience(a.plan.asks); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		enough = timer.C
	}
	take := func(c *call) {
		if d, err := c.d.judge(ctx, c); err == nil {
			a.drafts = append(a.drafts, d)
		}
		calls = slices.DeleteFunc(calls, func(o *call) bool { return o == c })
	}
	for late := false; len(calls) > 0 && !(late && len(a.drafts) > 0); {
		select {
		case c := <-told:
			take(c)
		case <-enough:
			late = true
		case <-ctx.Done():
			return
		}
	}
	took := time.Since(begun)
	for _, c := range slices.Clone(calls) {
		if c.ended() {
			take(c)
		} else {
			c.cut(took)
		}
	}
	planning := time.Now()
	s.merge(a, took)
	s.stats.Planning += time.Since(planning)
}

// patience returns for how long the slowest of several drafters is waited for: twice what the slower half
// of them usually takes, but at least a quarter of a round longer than that half, which is about what
// the one drafter brings that knows the text. 0: for as long as each may take, because what is usual is
// not known yet.
func (s *session) patience(asks []ask) time.Duration {
	paces := make([]time.Duration, len(asks))
	for i, k := range asks {
		if paces[i] = k.of.pace; paces[i] == 0 {
			return 0
		}
	}
	slices.Sort(paces)
	median := paces[len(paces)/2]
	return max(2*median, median+s.pace/4)
}

// merge makes one tree of what several drafters have answered.
func (s *session) merge(a *answer, took time.Duration) {
	order := func(d draft) int {
		return slices.IndexFunc(a.plan.asks, func(k ask) bool { return k.of == d.by })
	}
	slices.SortFunc(a.drafts, func(x, y draft) int { return order(x) - order(y) })
	var ballots []spec.Ballot
	var of []int // which draft a ballot is
	for i, d := range a.drafts {
		a.proposed.Busy = max(a.proposed.Busy, d.got.Busy) // they ran at the same time
		if d.got.Tree.Len() > 1 {
			ballots, of = append(ballots, spec.Ballot{Tree: d.got.Tree, Weight: s.weights.Of(d.by.of.Name)}), append(of, i)
		}
	}
	if len(ballots) == 0 {
		return
	}
	if a.plan.vote == tandem.VoteTree {
		a.tree, _ = spec.Merge(ballots, min(a.plan.nodes, s.nodes))
		if a.plan.cut.Verify != nil {
			a.tree, _ = spec.Cut(a.tree, a.plan.cut, took)
		}
		a.by = "vote"
	} else {
		var voted int
		a.tree, voted = spec.Majority(ballots)
		a.voted = of[voted]
		a.by = a.drafts[a.voted].by.of.Name
	}
	if a.tree.Len() == 1 {
		return
	}
	a.drafted, a.merged = true, true
	_, a.proposed.Depth = a.tree.Depths()
	a.proposed.Nodes = a.tree.Len()
}

// Package strategy decides what the rounds of a session draft: the planner, LLMCad, Minions, and trees of one
// shape. It knows drafters by their names alone; who asks them, and how, is the gateway's.
package strategy

import (
	"fmt"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/learn"
)

// Strategy decides what each round of one session drafts, and learns from what came of it. A strategy never waits
// and never asks anybody; it has one user. Whatever it decides, the text stays the same.
//
// None fails for want of drafters: without any a round is plain, with one a vote is that one's own
// draft. All go by the request's bounds: Bounds, Drafters, Vote and Off.
type Strategy interface {
	// Several reports whether it may ask more drafters than the first that is there.
	Several() bool
	// Decide returns what to draft next. ready are the drafters that can be asked, first the one to ask
	// if only one is; p is what is left of the policy within the request's budget. Either may be nothing.
	Decide(ready []string, p tandem.Bounds) Plan
	// Explain words, with the figures that decided, why the latest Decide chose p, which asks somebody or was weighed
	// against that. It comes before Learn.
	Explain(p Plan) string
	// Hear takes what a drafter says of the session's first base tokens, for which it had spent that long: when it was opened,
	// with every draft, and after Plan.Follow.
	Hear(drafter string, base tandem.Position, h tandem.Hindsight, spent time.Duration)
	// Learn takes a committed round that Decide has planned.
	Learn(o *Outcome)
	// HandOn folds what it has learned into what other sessions begin with, at the session's end.
	HandOn()
}

// Plan is what a round is to draft.
type Plan struct {
	Asks   []Ask       // none: nothing, the round is plain
	Vote   tandem.Vote // VoteNone: the one that is asked puts the ticket; else how the drafts become one tree
	Nodes  int         // of the merged tree at most, root included
	Cut    tandem.Plan // what the merged tree is cut by; zero: by Nodes alone
	Choice string      // for Stats.Choices
	Reason string      // for Stats.Reasons
	Follow []string    // drafters that are not asked and yet are to hear what was committed, for their hindsight
}

// deaf goes by no hindsight.
type deaf struct{}

func (deaf) Hear(string, tandem.Position, tandem.Hindsight, time.Duration) {}

// Ask is a drafter and the shape of the tree that is wanted of it: a proposal without session and tokens.
type Ask struct {
	Drafter string
	Shape   tandem.Proposal
}

// Draft is what one drafter made of a round.
type Draft struct {
	Drafter string
	Got     tandem.Proposed
	Extra   time.Duration // what it took longer than usual because it had to catch up first
}

// Outcome is what came of a plan.
type Outcome struct {
	Plan    Plan
	Drafts  []Draft // of those that answered in time, in the order of Plan.Asks
	Tree    tandem.Tree
	Merged  bool // Tree is made of several drafts
	Voted   int  // whose of Drafts the majority was; 0 with one
	Verdict tandem.Verdict
	Judged  bool          // Verdict says something about Tree: all of it was verified
	Tokens  int           // committed
	AtEnd   bool          // text or budget ended with this round
	Lossy   bool          // a ticket or verdict was lost on the way
	Wall    time.Duration // from the start of the round to its commit
	Rest    time.Duration // of it: neither draft nor target arithmetic
}

// Plain is the choice of a plan that asks nobody.
const Plain = "plain"

// Why a plan is what it is, for Stats.Reasons; the planner's are learn.Reason. Those in capitals are for what the
// gateway alone knows.
const (
	reasonFixed      = "fixed"      // as asked for
	reasonThreshold  = "threshold"  // until no branch is likelier than α
	reasonLength     = "length"     // as long as the slope rule says
	reasonTransition = "transition" // the same, of a length that is not judged yet
	ReasonNotAsked   = "plain: not asked for"
	ReasonBudget     = "plain: the budget ends"
	ReasonNobody     = "plain: nobody drafts"
	ReasonNoDraft    = "plain: no draft came" // although it was asked for
)

// poll returns a plan that asks all that are ready for trees of one shape if vote wants several drafts,
// else the first.
func poll(ready []string, vote tandem.Vote, shape tandem.Proposal, reason string) Plan {
	if len(ready) == 0 || shape.Bounds.Plain() {
		return Plan{Vote: tandem.VoteNone, Choice: Plain}
	}
	if vote == tandem.VoteNone || len(ready) == 1 {
		ready, vote = ready[:1], tandem.VoteNone
	}
	p := Plan{Vote: vote, Nodes: shape.Bounds.Nodes, Asks: make([]Ask, len(ready)), Reason: reason}
	for i, d := range ready {
		p.Asks[i] = Ask{d, shape}
	}
	p.Choice = fmt.Sprintf("%s %d/%d", p.who(), shape.Bounds.Nodes, shape.Bounds.Depth)
	return p
}

// who names those that are asked, for people.
func (p Plan) who() string {
	switch len(p.Asks) {
	case 0:
		return Plain
	case 1:
		return p.Asks[0].Drafter
	}
	return fmt.Sprintf("vote of %d", len(p.Asks))
}

// New returns the strategy of a request, and the weights of drafters that it goes by and moves: a merge by others
// is to use the same.
func New(r tandem.Request, shared *Shared) (Strategy, *learn.Weights) {
	vote := func(own tandem.Vote) tandem.Vote {
		if r.Vote == "" || r.Vote == tandem.VoteAuto {
			return own
		}
		return r.Vote
	}
	adaptive, ahead := r.Without&tandem.TechniqueAdaptive == 0, r.Without&tandem.TechniqueAhead == 0
	rules, w := shared.rules, shared.newWeights(adaptive && r.Strategy != "" && r.Strategy != tandem.StrategyFixed)
	switch r.Strategy {
	case tandem.StrategyLLMCad:
		return &llmcad{vote: vote(tandem.VoteNone), alpha: learn.NewAlpha(rules.Alpha), adaptive: adaptive, branch: rules.Branch, ahead: ahead}, w
	case tandem.StrategyMinions:
		m := &minions{shared: shared, vote: vote(tandem.VoteMajority), weights: w}
		if adaptive {
			m.length = learn.NewLength(lengthWithin(rules.Length, r.Bounds))
		}
		return m, w
	case tandem.StrategyPlanner:
		return newPlanner(shared, vote(tandem.VoteTree), w, adaptive, ahead), w
	}
	f := fixed{vote: vote(tandem.VoteNone)}
	if adaptive {
		f.weights = w
	}
	return f, w
}

// fixed drafts trees of the policy by levels, in turn with the verifier. All that it learns is whom to
// believe when several drafts are merged.
type fixed struct {
	deaf
	vote    tandem.Vote
	weights *learn.Weights // nil: they stay
}

func (f fixed) Several() bool { return f.vote != tandem.VoteNone }
func (f fixed) HandOn()       {}
func (f fixed) Learn(o *Outcome) {
	if f.weights != nil && f.vote == tandem.VoteTree && o.Judged {
		o.compare(f.weights)
	}
}
func (f fixed) Decide(ready []string, p tandem.Bounds) Plan {
	return poll(ready, f.vote, tandem.Proposal{Bounds: p, Growth: tandem.GrowLevels}, reasonFixed)
}
func (f fixed) Explain(p Plan) string {
	return "tree " + p.Asks[0].Shape.Bounds.String() + weighed(f.weights, p)
}

// compare weighs those that drafted for the round's tree by how much of what was committed each had known.
func (o *Outcome) compare(w *learn.Weights) {
	if !o.Merged {
		return
	}
	held := make(map[string]int, len(o.Drafts))
	for _, d := range o.Drafts {
		held[d.Drafter] = spec.Held(d.Got.Tree, o.Verdict.Tokens)
	}
	w.Compare(held)
}

// weighed lists the weights of the drafters that p asks, "" unless several are asked and have weights.
func weighed(w *learn.Weights, p Plan) string {
	if w == nil || len(p.Asks) < 2 {
		return ""
	}
	now := w.Snapshot() // Of would make those known that have not drafted yet
	list := make([]string, len(p.Asks))
	for i, k := range p.Asks {
		v, known := now[k.Drafter]
		if !known {
			v = 1
		}
		list[i] = fmt.Sprintf("%s %.2f", k.Drafter, v)
	}
	return "; weights " + strings.Join(list, ", ")
}

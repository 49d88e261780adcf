package strategy

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/learn"
)

// minions is Minions (Wang et al., 2024): every drafter writes a chain, the weighted majority of them is
// verified (or all of them in one tree), the drafter that was voted is rewarded or punished, and
// the length of the chains follows the slope of the verification time per token. Drafts of one session
// overlap the verification of others, as in the paper; nobody drafts ahead.
type minions struct {
	deaf
	shared  *Shared
	vote    tandem.Vote
	weights *learn.Weights
	length  *learn.Length // nil: the policy's depth
	asked   int           // the length of the latest chains
}

func (m *minions) Several() bool { return m.vote != tandem.VoteNone }

func (m *minions) HandOn() {
	if m.length != nil {
		m.shared.handOn(m.weights)
	}
}

func (m *minions) Decide(ready []string, p tandem.Bounds) Plan {
	s := p.Depth
	if m.length != nil {
		s = min(s, m.length.Now())
	}
	m.asked = min(s, p.Nodes-1)
	reason := reasonFixed
	switch {
	case m.length == nil:
	case m.length.InTransition():
		reason = reasonTransition
	default:
		reason = reasonLength
	}
	chains := poll(ready, m.vote, tandem.Proposal{Bounds: tandem.Bounds{Nodes: m.asked + 1, Depth: m.asked, Width: 1}}, reason)
	if chains.Vote == tandem.VoteTree {
		chains.Nodes = p.Nodes
	}
	return chains
}

func (m *minions) Explain(p Plan) string {
	out := fmt.Sprintf("%d tokens", m.asked)
	if m.length != nil {
		out = m.length.Explain()
	}
	return out + weighed(m.weights, p)
}

func (m *minions) Learn(o *Outcome) {
	if m.length == nil || !o.Judged {
		return
	}
	if o.Plan.Vote == tandem.VoteTree {
		o.compare(m.weights)
	} else if o.Voted < len(o.Drafts) { // of a majority, only the voted one's output was verified
		d := o.Drafts[o.Voted]
		m.weights.Record(d.Drafter, spec.Held(d.Got.Tree, o.Verdict.Tokens), d.Got.Tree.Len()-1)
	}
	m.length.Record(m.asked, o.Verdict.Busy, len(o.Verdict.Tokens))
}

// lengthWithin returns the rule for lengths that a policy allows.
func lengthWithin(r learn.LengthRule, p tandem.Bounds) learn.LengthRule {
	most := min(r.Most, max(p.Depth, 1), max(p.Nodes-1, 1))
	r.Most, r.Start = most, min(r.Start, most)
	return r
}

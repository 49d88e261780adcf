package strategy

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/learn"
)

// minions is Minions (Wang et al., 2024): every drafter writes a chain, the weighted majority of them is
// verified (or all of them in one tree), the drafter that won the vote is rewarded or punished, and
// the length of the chains, one for all sessions, follows a slope of the verification time per token. Drafts of one session
// overlap the verification of others, as in the paper; no drafter works ahead.
type minions struct {
	unweighing
	shared   *Shared
	vote     tandem.Vote
	weights  *learn.Weights
	adaptive bool // else weights stay and the length is the depth of the bounds
	asked    int  // the length of the latest chains
	bounded  bool // it was less than the one in use
}

func newMinions(o options) Strategy {
	return &minions{shared: o.shared, vote: o.vote, weights: o.weights, adaptive: o.adaptive}
}

func (m *minions) Several() bool { return m.vote != tandem.VoteNone }

func (m *minions) HandOn() {
	if m.adaptive {
		m.shared.handOn(m.weights)
	}
}

func (m *minions) Decide(ready []string, b tandem.Bounds) Decision {
	m.asked, m.bounded = min(b.Depth, b.Nodes-1), false
	reason := reasonFixed
	if m.adaptive {
		length, transition := m.shared.length()
		m.asked, m.bounded = min(m.asked, length), m.asked < length
		if reason = reasonLength; transition {
			reason = reasonTransition
		}
	}
	chains := poll(ready, m.vote, tandem.Proposal{Bounds: tandem.Bounds{Nodes: m.asked + 1, Depth: m.asked, Width: 1}}, reason)
	if chains.Vote == tandem.VoteTree {
		chains.Nodes = b.Nodes
	}
	return chains
}

func (m *minions) Explain(d Decision) string {
	out := fmt.Sprintf("%d tokens", m.asked)
	if m.adaptive {
		out += ", " + m.shared.explainLength()
	}
	return out + weighed(m.weights, d)
}

func (m *minions) Learn(o *Outcome) {
	if !m.adaptive || !o.Judged {
		return
	}
	if o.Decision.Vote == tandem.VoteTree {
		o.compare(m.weights)
	} else if o.Voted < len(o.Drafts) { // of a majority, only the voted one's output was verified
		d := o.Drafts[o.Voted]
		m.weights.Record(d.Drafter, spec.Held(d.Got.Tree, o.Verdict.Tokens), d.Got.Tree.Len()-1)
	}
	v := o.Verdict
	length, right := verifiedChain(o.Tree, v.Tokens)
	m.shared.chain(learn.Chain{Session: v.Session, Batch: v.Batch, Rows: v.Rows, Nodes: v.Nodes, Busy: v.Busy, Length: length, Right: right,
		Bounded: m.bounded})
}

// verifiedChain returns the length of the chain in t that agrees with the committed tokens furthest, and how much of it
// was right. Of chains that part only after that, the longest counts.
func verifiedChain(t tandem.Tree, committed []tandem.Token) (length, right int) {
	depths, _ := t.Depths()
	end, on := 0, make([]bool, t.Len())
	on[0] = true
	for i := 1; i < t.Len(); i++ {
		d := int(depths[i])
		if on[i] = on[t.Parents[i]] && d <= len(committed) && t.Tokens[i] == committed[d-1]; on[i] && d > right {
			end, right = i, d
		}
	}
	below := make([]bool, t.Len())
	below[end], length = true, right
	for i := end + 1; i < t.Len(); i++ {
		if below[i] = below[t.Parents[i]]; below[i] {
			length = max(length, int(depths[i]))
		}
	}
	return length, right
}

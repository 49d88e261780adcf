package strategy

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
)

// fixed drafts trees within the bounds by levels, in turn with the verifier. It learns only the drafters' weights,
// for merging several drafts.
type fixed struct {
	unweighing
	vote    tandem.Vote
	weights *learn.Weights // nil: they stay
}

func newFixed(o options) Strategy {
	f := fixed{vote: o.vote}
	if o.adaptive {
		f.weights = o.weights
	}
	return f
}

func (f fixed) Several() bool { return f.vote != tandem.VoteNone }
func (f fixed) HandOn()       {}
func (f fixed) Learn(o *Outcome) {
	if f.weights != nil && f.vote == tandem.VoteTree && o.Judged {
		o.compare(f.weights)
	}
}
func (f fixed) Decide(ready []string, b tandem.Bounds) Decision {
	return poll(ready, f.vote, tandem.Proposal{Bounds: b, Growth: tandem.GrowLevels}, reasonFixed)
}
func (f fixed) Explain(d Decision) string {
	return "tree " + d.Asks[0].Proposal.Bounds.String() + weighed(f.weights, d)
}

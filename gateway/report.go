package gateway

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec"
)

// reason returns the kind of choice that the round was, for Stats.Reasons.
func (a *answer) reason() string {
	if len(a.asks) > 0 && !a.drafted && len(a.verdict.Path) == 0 {
		return strategy.ReasonNoDraft
	}
	return a.plan.Reason
}

// idle says why nothing can be drafted.
func (s *session) idle(p tandem.Bounds) string {
	switch {
	case s.req.Bounds.Plain():
		return strategy.ReasonNotAsked
	case p.Plain():
		return strategy.ReasonBudget
	}
	return strategy.ReasonNobody
}

// why words in one line why the round was drafted as it was. It must be asked before the strategy learns.
func (s *session) why(a *answer) string {
	if a.why != "" {
		return a.why
	}
	switch reason := a.plan.Reason; {
	case reason == strategy.ReasonNobody:
		a.why = reason + s.absent()
	case strings.HasPrefix(reason, strategy.Plain):
		a.why = reason
	default:
		a.why = reason + ": " + s.strategy.Explain(a.plan)
		if a.reason() == strategy.ReasonNoDraft {
			a.why += "; no draft came"
		}
	}
	return a.why
}

// absent lists the drafters and what keeps each from drafting.
func (s *session) absent() string {
	if len(s.drafts) == 0 {
		return ", none is alive"
	}
	var out strings.Builder
	for i, d := range s.drafts {
		what := draftStates[d.state]
		if d.of.Seat.Conduct.Aside() {
			what = "put aside"
		}
		fmt.Fprintf(&out, "%s%s %s", map[bool]string{true: ": ", false: ", "}[i == 0], d.of.Name, what)
	}
	return out.String()
}

// report tells how a committed round came about. What was verified is the tree if the verdict is about all of it;
// else it was a drafter's ticket whose answer was lost, or the root alone, and of that no more is known than
// what was accepted.
func (s *session) report(a *answer) *tandem.Round {
	v := a.verdict
	n := len(a.delta.Tokens)
	r := &tandem.Round{Index: s.stats.Rounds, Base: v.Base, Choice: a.plan.Choice, Why: s.why(a)}
	path := v.Path[:min(len(v.Path), n)]
	if a.judged() {
		r.Tree = tandem.Tree{Tokens: slices.Clone(a.tree.Tokens), Parents: slices.Clone(a.tree.Parents), LogProbs: slices.Clone(a.tree.LogProbs)}
		r.Path = slices.Clone(path)
	} else {
		r.Tree = tandem.Root(s.tokens[int(v.Base)-1])
		for i := range path {
			r.Tree.Tokens, r.Tree.Parents = append(r.Tree.Tokens, v.Tokens[i]), append(r.Tree.Parents, int32(i))
			r.Path = append(r.Path, int32(i+1))
		}
	}
	var trees []tandem.Tree
	for _, d := range a.drafts {
		t := d.got.Tree
		if t.Len() == 0 { // it did not say
			t = r.Tree
		}
		r.Drafters, trees = append(r.Drafters, d.by.of.Name), append(trees, t)
	}
	if len(a.drafts) == 0 && len(path) > 0 && len(a.asks) > 0 {
		r.Drafters, trees = []string{a.asks[0].of.of.Name}, []tandem.Tree{r.Tree}
	}
	r.Votes = spec.Support(r.Tree, trees)
	r.Lanes = s.lanes(a)
	return r
}

// lanes returns what the stages of a round took, as far as this side can tell: it knows when it asked, when answers
// came, and for how long the others computed, but not when they began.
//
//	ahead   from the drafter's answer before this one, as long as it says that it went on after it
//	draft   from the call, as long as the drafter says that it computed
//	pool    from the put of the ticket, or the end of the draft if the drafter put it, to the begin of verify
//	verify  up to the arrival of the verdict, as long as the verifier says that the pass took
//	commit  from there to now
//
// So the way of a question counts for the stage after it, and the way of a verdict for the pool.
func (s *session) lanes(a *answer) []tandem.Lane {
	out := make([]tandem.Lane, 0, 2*len(a.drafts)+3)
	add := func(stage, by string, from, to time.Time) {
		if to.After(from) {
			out = append(out, tandem.Lane{Stage: stage, By: by, From: from.Sub(s.begun), To: to.Sub(s.begun)})
		}
	}
	now, came, put := time.Now(), s.box.came, a.put
	for _, d := range a.drafts {
		if !d.last.IsZero() {
			add("ahead", d.by.of.Name, d.last, earlier(d.last.Add(d.got.Ahead), d.begun))
		}
	}
	for _, d := range a.drafts {
		end := earlier(d.begun.Add(d.got.Busy), came)
		add("draft", d.by.of.Name, d.begun, end)
		if !a.merged && (put.IsZero() || end.Before(put)) {
			put = end
		}
	}
	pass := came.Add(-max(a.verdict.Busy, 0))
	if put.IsZero() {
		put = pass // a drafter's that was not heard any more
	}
	if pass.Before(put) {
		pass = put
	}
	add("pool", "", put, pass)
	add("verify", "", pass, came)
	add("commit", "", came, now)
	return out
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

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
	return a.decision.Reason
}

// idle says why nothing can be drafted.
func (s *session) idle(b tandem.Bounds) string {
	switch {
	case s.req.Bounds.Plain():
		return strategy.ReasonNotAsked
	case b.Plain():
		return strategy.ReasonBudget
	}
	return strategy.ReasonNobody
}

// why explains in one line why the round was drafted as it was. It must be called before the strategy learns.
func (s *session) why(a *answer) string {
	if a.why != "" {
		return a.why
	}
	switch reason := a.decision.Reason; {
	case reason == strategy.ReasonNobody:
		a.why = reason + s.absent()
	case strings.HasPrefix(reason, strategy.Plain):
		a.why = reason
	default:
		a.why = reason + ": " + s.strategy.Explain(a.decision)
		if a.reason() == strategy.ReasonNoDraft {
			a.why += "; no draft came"
		}
	}
	return a.why
}

// absent lists the drafters and what keeps each from drafting.
func (s *session) absent() string {
	if len(s.liaisons) == 0 {
		return ", none is alive"
	}
	var out strings.Builder
	for i, l := range s.liaisons {
		what := liaisonStates[l.state]
		switch {
		case l.of.Seat.Conduct.Aside():
			what = "put aside"
		case l.of.Way != nil && l.state != liaisonOff:
			what = "has not guessed"
		}
		fmt.Fprintf(&out, "%s%s %s", map[bool]string{true: ": ", false: ", "}[i == 0], l.of.Name, what)
	}
	return out.String()
}

// report describes a committed round. If the verdict covers the whole tree, that tree was verified; else it was
// a drafter's ticket whose answer was lost, or the root alone, and only the accepted tokens are
// known.
func (s *session) report(a *answer) *tandem.Round {
	v := a.verdict
	n := len(a.delta.Tokens)
	r := &tandem.Round{Index: s.stats.Rounds, Base: v.Base, Choice: a.decision.Choice, Why: s.why(a)}
	path := v.Path[:min(len(v.Path), n)]
	if a.judged() {
		r.Tree = tandem.Tree{Tokens: slices.Clone(a.tree.Tokens), Parents: slices.Clone(a.tree.Parents),
			LogProbs: slices.Clone(a.tree.LogProbs)}
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

// lanes returns the times of a round's stages, as far as the gateway can tell: it knows when it asked, when answers
// came, and for how long the others computed, but not when they began.
//
//	ahead   from the drafter's previous answer, for as long as it says that it went on after it
//	draft   from the call, for as long as the drafter says that it computed
//	pool    from the put of the ticket, or the end of the draft if the drafter put it, to the begin of verify
//	verify  up to the arrival of the verdict, or the begin of guess, for as long as the verifier says that the pass took
//	guess   of the target's own ways, for the next round: up to the arrival of the verdict, for as long as the verifier says
//	commit  from there to now
//
// So the transport of a question counts for the stage after it, and that of a verdict for the pool.
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
		if d.by.of.Way != nil {
			continue // it has guessed in the round before
		}
		end := earlier(d.begun.Add(d.got.Busy), came)
		add("draft", d.by.of.Name, d.begun, end)
		if len(a.drafts) == 1 && !a.own && (put.IsZero() || end.Before(put)) {
			put = end // of several drafts the gateway put the ticket, also where the verifier refused what they make together
		}
	}
	came = came.Add(-max(a.verdict.Guessing, 0))
	pass := came.Add(-max(a.verdict.Busy, 0))
	if put.IsZero() {
		put = pass // a drafter's that was not heard any more
	}
	if pass.Before(put) {
		pass = put
	}
	add("pool", "", put, pass)
	add("verify", "", pass, came)
	add("guess", strings.Join(a.ways, ", "), came, s.box.came)
	add("commit", "", s.box.came, now)
	return out
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

package gateway

import (
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec"
)

// explain returns one line on why the round was drafted as it was. It must be called before the strategy learns.
func (t *turn) explain() string {
	if t.why != "" {
		return t.why
	}
	switch reason := t.Decision.Reason; {
	case reason == strategy.ReasonNobody:
		t.why = reason + t.sources.Absent()
	case strings.HasPrefix(reason, strategy.Plain):
		t.why = reason
	default:
		t.why = reason + ": " + t.strategy.Explain(t.Decision)
		if t.Reason() == strategy.ReasonNoDraft {
			t.why += "; no draft came"
		}
	}
	return t.why
}

// attributes describe the round for telemetry.
func (t *turn) attributes(s tandem.Strategy) []tandem.Attr {
	attrs := []tandem.Attr{number("nodes", t.Size), number("depth", t.Depth), number("accepted", len(t.Verdict.Path)),
		text("strategy", string(s)), text("choice", t.Choice), text("why", t.explain())}
	fate := t.Fate()
	if fate != "" && !t.Failed() {
		attrs = append(attrs, text("drafter", t.By))
	}
	if fate != "" {
		attrs = append(attrs, text("outcome", fate))
	}
	return attrs
}

// report describes a committed round, the index-th of a session that began at begun; the verdict came at came. If the verdict covers the
// whole tree, that tree was verified; else it was a drafter's ticket whose answer was lost, or the root alone, and only the accepted
// tokens are known.
func (t *turn) report(index int, begun, came time.Time) *tandem.Round {
	v := t.Verdict
	r := &tandem.Round{Index: index, Base: v.Base, Choice: t.Choice, Why: t.explain()}
	path := v.Path[:min(len(v.Path), len(t.delta.Tokens))]
	if t.Judged() {
		r.Tree = tandem.Tree{Tokens: slices.Clone(t.Tree.Tokens), Parents: slices.Clone(t.Tree.Parents),
			LogProbs: slices.Clone(t.Tree.LogProbs)}
		r.Path = slices.Clone(path)
	} else {
		r.Tree = tandem.Root(t.Root)
		for i := range path {
			r.Tree.Tokens, r.Tree.Parents = append(r.Tree.Tokens, v.Tokens[i]), append(r.Tree.Parents, int32(i))
			r.Path = append(r.Path, int32(i+1))
		}
	}
	var trees []tandem.Tree
	for _, d := range t.Drafts {
		x := d.Got.Tree
		if x.Len() == 0 { // it did not say
			x = r.Tree
		}
		r.Drafters, trees = append(r.Drafters, d.Drafter), append(trees, x)
	}
	if len(t.Drafts) == 0 && len(path) > 0 && len(t.Asks) > 0 {
		r.Drafters, trees = []string{t.Asks[0].Drafter}, []tandem.Tree{r.Tree}
	}
	r.Votes = spec.Support(r.Tree, trees)
	r.Lanes = t.lanes(begun, came)
	return r
}

// lanes returns the times of a round's stages, as far as the gateway knows them: it knows when it asked, when answers
// came, and for how long the others computed, but not when they began.
//
//	ahead   from the drafter's previous answer, for as long as it says that it went on after it
//	draft   from the call, for as long as the drafter says that it computed
//	pool    from the put of the ticket, or the end of the draft if the drafter put it, to the begin of verify
//	verify  up to the arrival of the verdict, or the begin of guess, for as long as the verifier says that the pass took
//	guess   of the target's self-drafts, for the next round: up to the arrival of the verdict, for as long as the verifier says
//	commit  from there to now
//
// So the transport of a question counts for the stage after it, and that of a verdict for the pool.
func (t *turn) lanes(begun, answered time.Time) []tandem.Lane {
	out := make([]tandem.Lane, 0, 2*len(t.Drafts)+4)
	add := func(stage, by string, from, to time.Time) {
		if to.After(from) {
			out = append(out, tandem.Lane{Stage: stage, By: by, From: from.Sub(begun), To: to.Sub(begun)})
		}
	}
	now, put := time.Now(), t.put
	for _, d := range t.Drafts {
		if !d.Last.IsZero() {
			add("ahead", d.Drafter, d.Last, earlier(d.Last.Add(d.Got.Ahead), d.Begun))
		}
	}
	for _, d := range t.Drafts {
		end := earlier(d.Begun.Add(d.Busy), answered)
		add("draft", d.Drafter, d.Begun, end)
		if t.InPool && (put.IsZero() || end.Before(put)) {
			put = end
		}
	}
	came := answered.Add(-max(t.Verdict.Guessing, 0))
	pass := came.Add(-max(t.Verdict.Busy, 0))
	if put.IsZero() {
		put = pass // a drafter put it, whose answer was lost
	}
	if pass.Before(put) {
		pass = put
	}
	add("pool", "", put, pass)
	add("verify", "", pass, came)
	add("guess", strings.Join(t.Guesses, ", "), came, answered)
	add("commit", "", answered, now)
	return out
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

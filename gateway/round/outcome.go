package round

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec"
)

// Verified returns the tree that was verified as a whole. It is empty if the verdict does not show that.
func (r *Round) Verified() (t tandem.Tree) {
	if r.Judged() {
		return r.Tree
	}
	return t
}

// Failed reports whether the session must be opened again.
func (r *Round) Failed() bool { return r.state == Failed }

// Rest returns how much of wall, the time of the round, was neither draft nor target arithmetic; never below 0.
func (r *Round) Rest(wall time.Duration) time.Duration {
	return max(wall-r.Busy-max(r.Verdict.Busy, 0)-max(r.Verdict.Guessing, 0), 0)
}

// Reason returns why the round was what it was, for Stats.Reasons: the decision's reason, or that no draft came.
func (r *Round) Reason() string {
	if len(r.Asks) > 0 && !r.drafted() && len(r.Verdict.Path) == 0 {
		return strategy.ReasonNoDraft
	}
	return r.Decision.Reason
}

// Fate returns what became of the draft: "accepted", "partial", "rejected", "expired", or "stale" in a failed round; "" without a draft.
func (r *Round) Fate() string {
	switch path := len(r.Verdict.Path); {
	case r.state == Failed:
		return "stale"
	case !r.drafted():
		return ""
	case r.Size > 1 && r.Verdict.Nodes < 2:
		return "expired" // the tree was lost or late, and the root alone was verified
	case path == 0:
		return "rejected"
	case path == r.Depth:
		return "accepted"
	}
	return "partial"
}

// Held returns how many of the committed tokens were in d, one of Drafts. If its source did not return its tree, those are all but the
// last.
func (r *Round) Held(d *Draft, committed []tandem.Token) int {
	switch {
	case d.Got.Tree.Len() > 0:
		return spec.Held(d.Got.Tree, committed)
	case r.drafted(): // it did not say what it had drafted
		return len(committed) - 1
	}
	return 0
}

// Outcome returns what a strategy may learn from the round: committed tokens came of it, and it took wall. atEnd says that the text ended
// with it.
func (r *Round) Outcome(committed int, atEnd bool, wall time.Duration) *strategy.Outcome {
	o := &strategy.Outcome{Decision: r.Decision, Drafts: make([]strategy.Draft, len(r.Drafts)), Tree: r.Tree,
		Merged: r.Origin == Several, Voted: r.Voted, Verdict: r.Verdict, Judged: r.Judged(), Tokens: committed, AtEnd: atEnd,
		Lossy: r.Tickets > 1, Rest: r.Rest(wall), Wall: wall - max(r.Verdict.Guessing, 0), Prompts: r.Prompts}
	for i, d := range r.Drafts {
		o.Drafts[i] = strategy.Draft{Drafter: d.Drafter, Got: d.Got, Extra: d.Extra, Away: d.Away}
		o.Wall += d.Guessing
	}
	return o
}

package round

import "github.com/tandem-llm/tandem"

// Ticket returns the next ticket to put: with the drafted tree and prompt nodes at first, then with the root alone. Every ticket of a
// gateway comes from here; a drafter that puts its own has the same fields from its Proposal.
func (r *Round) Ticket(trace string) tandem.Ticket {
	t := tandem.Ticket{Session: r.Session, Epoch: r.Epoch, Base: r.Base, Hash: r.Hash, Tree: r.first, SelfDrafts: r.Guesses,
		Successors: r.Successors, Trace: trace}
	switch {
	case r.Tickets > 0:
		t.Tree = tandem.Root(r.Root)
	case r.drafted():
		t.Drafter = r.By
		fallthrough
	default:
		r.Prompts = r.first.Prompts
	}
	return t
}

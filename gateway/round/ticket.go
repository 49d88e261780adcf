package round

import "github.com/tandem-llm/tandem"

// Ticket returns the next ticket to put. The first has the drafted tree and prompt nodes, all later ones the root alone. trace is carried
// along for telemetry. Every ticket of a gateway comes from here; a drafter that puts its own has the same fields from its Proposal.
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

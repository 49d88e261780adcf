package verifier

import (
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestHeldSessionsHaveTheirOwners: the verdict on a ticket goes to the process that holds the session now, whoever had it before; that of a
// session that is not held to whoever had it.
func TestHeldSessionsHaveTheirOwners(t *testing.T) {
	b := newBench(t)
	a, err := b.out.Subscribe(0xa)
	if err != nil {
		t.Fatal(err)
	}
	b.out.Miss(0xb, 3, 4) // had them
	o := tandem.Opening{Session: 3, Owner: 0xa, Tokens: []tandem.Token{1}, Limit: 10, MaxNodes: 1, Sampling: tandem.Sampling{TopP: 1}}
	s, err := b.enter(o)
	if err != nil {
		t.Fatal(err)
	}
	b.sched.Step()
	b.ask(s, 1)
	b.sched.Step()
	if got := a.Pending(9); len(got) != 1 || got[0].Session != 3 || got[0].Kind != tandem.OK {
		t.Errorf("the owner hears %+v: want a verdict on session 3", got)
	}
	other, err := b.out.Subscribe(0xb)
	if err != nil {
		t.Fatal(err)
	}
	lost := tandem.Ticket{Session: 4}
	b.admission.take(lost, b.queue.enter(lost))
	if got := other.Pending(9); len(got) != 1 || got[0].Kind != tandem.UnknownSession {
		t.Errorf("who had session 4 hears %+v: want unknown session", got)
	}
	b.sched.Drop(s, nil)
	last := tandem.Ticket{Session: 3}
	b.admission.take(last, b.queue.enter(last))
	if got := a.Pending(9); len(got) != 1 || got[0].Kind != tandem.UnknownSession || len(b.heard.Pending(9)) != 0 {
		t.Errorf("who had session 3 last hears %+v: want unknown session", got)
	}
}

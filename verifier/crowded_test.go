package verifier

import (
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

// TestCrowdedOutIsTold: a session that was dropped for older ones while it was idle learns so from its next ticket, not that it is
// unknown; and a session that could never fit is refused at once.
func TestCrowdedOutIsTold(t *testing.T) {
	b := newBench(t)
	open := func(id tandem.SessionID, n int) *session {
		s, err := b.enter(tandem.Opening{Session: id, Tokens: counting(int(id), n), Limit: 800, MaxNodes: benchRows,
			Sampling: tandem.Sampling{TopP: 1}})
		if err != nil {
			t.Fatal(err)
		}
		b.fill()
		return s
	}
	old := open(1, 64)
	var young *session
	for id := tandem.SessionID(2); b.cfg.Model.FreePages() > 0; id++ {
		young = open(id, min(b.cfg.Model.FreePages()*engine.PageTokens, 600))
	}
	step := func() {
		b.sched.Step()
		b.verdicts = b.heard.Pending(benchRows)
	}
	b.ask(old, 8)
	if step(); len(b.verdicts) != 1 || b.verdicts[0].Kind != tandem.OK || b.sched.Holds(young) || !b.sched.Holds(old) {
		t.Fatalf("verdicts %+v; the youngest is held: %v, the oldest: %v", b.verdicts, b.sched.Holds(young), b.sched.Holds(old))
	}
	b.ask(young, 4)
	if step(); len(b.verdicts) != 1 || b.verdicts[0].Kind != tandem.Exhausted {
		t.Errorf("the youngest is told %+v: want exhausted", b.verdicts)
	}
	if _, err := b.enter(tandem.Opening{Session: 99, Tokens: counting(9, 5), Limit: 1 << 20,
		MaxNodes: benchRows}); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("a session for which there never is memory: %v", err)
	}
}

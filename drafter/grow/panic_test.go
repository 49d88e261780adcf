package grow_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestPanicsEndOneSession makes the owner stumble over a session that is damaged on purpose.
func TestPanicsEndOneSession(t *testing.T) {
	r := draftertest.New(t, drafter.Config{})
	r.Begin(1, r.Text)
	r.Begin(2, r.Text)
	r.Drafted(draftertest.Proposal(1, r.Text, len(r.Text)))
	r.Draft().Sched.Post(func() { // claims to have run nodes that the cache does not hold
		s := r.Draft().Session(1)
		s.Explored.Start([]spec.Candidate{{Token: 5}}, grow.MaxWidth)
		s.Explored.Add(0, 5, nil, 0)
		_ = s.Cache.Truncate(s.Cache.Len())
	})
	r.Draft().Sched.Post(func() { panic("posted") })
	longer := append(slices.Clone(r.Text), 5, 6)
	_, err := r.Propose(context.Background(), draftertest.Proposal(1, longer, len(r.Text)))
	if !errors.Is(err, tandem.Internal) || !strings.Contains(err.Error(), "commit path") {
		t.Errorf("got %v, want Internal with the reason", err)
	}
	if _, err := r.Propose(context.Background(), draftertest.Proposal(1, longer, len(r.Text))); !errors.Is(err, tandem.UnknownSession) {
		t.Errorf("the damaged session: %v, want UnknownSession", err)
	}
	r.Drafted(draftertest.Proposal(2, r.Text, len(r.Text)))
	r.Begin(1, longer)
	r.Drafted(draftertest.Proposal(1, longer, len(longer)))
	damaged := grow.NewJob(context.Background(), tandem.Proposal{})
	r.Draft().Sched.Post(func() {
		s := r.Draft().Session(1)
		s.Text.Tokens, s.Job = nil, damaged
		r.Draft().Sched.Queue(s, damaged.Call, time.Now(), 1)
	})
	if err := damaged.Wait(); !errors.Is(err, tandem.Internal) {
		t.Errorf("a pass that cannot be planned: %v, want Internal", err)
	}
	r.Drafted(draftertest.Proposal(2, append(slices.Clone(r.Text), 8), len(r.Text)))
	p := draftertest.Proposal(1, append(slices.Clone(longer), 9), len(longer))
	p.Epoch, p.Ahead = 1, true
	r.Begin(1, longer)
	r.Drafted(p)
	r.Draft().Sched.Post(func() { // goes on ahead with nowhere to note it
		s := r.Draft().Session(1)
		r.Draft().Sched.Rest(s)
		s.AheadNowhere(50)
		r.Draft().Sched.Spare(s)
		s.Explored.Sent(tandem.Root(9), 0)
	})
	testkit.Eventually(t, "drafting ahead without notes is a fault", func() bool { return r.Counters.Snapshot()["faults"] >= 4 })
	if _, err := r.Propose(context.Background(), p); !errors.Is(err, tandem.UnknownSession) {
		t.Errorf("after a fault ahead: %v, want UnknownSession", err)
	}
	r.Drafted(draftertest.Proposal(2, append(slices.Clone(r.Text), 8), len(r.Text)+1))
	if n := r.Counters.Snapshot()["faults"]; n != 4 {
		t.Errorf("%d faults", n)
	}
}

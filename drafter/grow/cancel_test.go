package grow_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
)

// impatient is a context whose deadline passes when it has been asked for its error so many times: the schedule asks before each pass.
type impatient struct {
	context.Context
	mu   sync.Mutex
	left int
	done chan struct{}
}

func afterPasses(n int) *impatient {
	return &impatient{Context: context.Background(), left: n, done: make(chan struct{})}
}

func (c *impatient) Done() <-chan struct{} { return c.done }

func (c *impatient) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left == 0 {
		close(c.done)
	}
	if c.left > 0 {
		return nil
	}
	return context.DeadlineExceeded
}

func TestCancelEndsTheWork(t *testing.T) {
	r := draftertest.New(t, drafter.Config{Chunk: 1})
	long := slices.Repeat(r.Text, 20)[:draftertest.Limit-1]
	_, err := r.Open(afterPasses(20), tandem.Opening{Session: 1, Tokens: long, Limit: draftertest.Limit, MaxNodes: 4})
	if !errors.Is(err, tandem.Deadline) {
		t.Fatalf("Open: %v, want Deadline", err)
	}
	r.Begin(2, r.Text)
	grown := append(slices.Clone(r.Text), long[:100]...)
	if _, err := r.Propose(afterPasses(20), draftertest.Proposal(2, grown, len(r.Text))); !errors.Is(err, tandem.Deadline) {
		t.Fatalf("Propose: %v, want Deadline", err)
	}
	err = r.Draft().Sched.Do(context.Background(), func() error {
		if l := r.Draft().Sched.Load(); l.Sessions != 1 || l.Opening+l.Queued > 1 {
			t.Errorf("%+v", l)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	r.Drafted(draftertest.Proposal(2, grown, len(r.Text)))
	if n := r.Counters.Snapshot(); n["drafts.deadline"] != 1 || n["drafts"] != 1 {
		t.Errorf("counters %v", n)
	}
}

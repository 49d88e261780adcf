package verifier

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestQueueHoldsOneBatch: as many tickets wait as a batch has, and those of the pass that runs are none of them.
func TestQueueHoldsOneBatch(t *testing.T) {
	b := newBench(t)
	b.queue = newQueue(3, b.cfg.Counters)
	var all []*session
	for i := range 3 {
		all = append(all, b.openPrompt(tandem.SessionID(i+1), 1))
	}
	b.sched.Step() // their prompts are in
	var others []*queued
	begun := 0
	b.admission.events.BeginFunc = func(ctx context.Context, stage tandem.Stage, _ []tandem.Attr) (context.Context, tandem.End) {
		if stage == tandem.StageVerify {
			if begun++; begun == len(all) { // all are in the pass that is about to run
				for at := b.queue.enter(tandem.Ticket{}); at != nil; at = b.queue.enter(tandem.Ticket{}) {
					others = append(others, at)
				}
			}
		}
		return ctx, func(error, ...tandem.Attr) {}
	}
	for _, s := range all {
		b.ask(s, 2)
	}
	if b.Waiting().Tickets != 3 || b.queue.enter(tandem.Ticket{}) != nil {
		t.Fatal("the queue takes one more than a batch")
	}
	if trees, _ := b.run(); len(trees) != 3 {
		t.Fatalf("%d tickets were in the pass", len(trees))
	}
	if n := b.Waiting().Tickets; len(others) != 3 || n != 3 {
		t.Errorf("%d more came while the pass ran, and %d wait after it: want 3 and 3", len(others), n)
	}
	for _, at := range others {
		at.leave()
	}
	b.ask(all[0], 2)
	b.sched.Close(all[0].ID) // a session goes with what waits for it
	if w := b.Waiting(); w.Tickets != 0 {
		t.Errorf("%d tickets wait for a session that is gone", w.Tickets)
	}
}

// TestWaitingTells: how many, how long, whose.
func TestWaitingTells(t *testing.T) { synctest.Test(t, waitingTells) }

func waitingTells(t *testing.T) {
	q := newQueue(4, new(tandem.Counters))
	v := &Verifier{queue: q}
	if w := v.Waiting(); !reflect.DeepEqual(w, Waiting{Most: 4, Of: map[string]int{}}) {
		t.Errorf("an empty queue: %+v", w)
	}
	first := q.enter(tandem.Ticket{Drafter: "go"})
	testkit.Sleep(5 * time.Millisecond)
	second := time.Now()
	q.enter(tandem.Ticket{Drafter: "py"})
	q.enter(tandem.Ticket{Drafter: "go"})
	q.enter(tandem.Ticket{})
	w := v.Waiting()
	if w.Tickets != 4 || w.Oldest < 5*time.Millisecond || !reflect.DeepEqual(w.Of, map[string]int{"go": 2, "py": 1, "": 1}) {
		t.Errorf("four tickets: %+v", w)
	}
	first.leave()
	first.leave()
	if w := v.Waiting(); w.Tickets != 3 || w.Oldest > time.Since(second) || w.Of["go"] != 1 {
		t.Errorf("after the first left, twice: %+v", w)
	}
	if n := q.counters.Snapshot()["tickets.waited_us"]; n < 5000 {
		t.Errorf("it waited for %d µs", n)
	}
}

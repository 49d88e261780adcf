package schedule

import (
	"context"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// TestBatches: a pass takes as many sessions as a batch has, those that waited longest first; so all get their turn.
func TestBatches(t *testing.T) {
	for batches, want := range map[int]int{0: 5, 1: 5, 2: 3, 3: 2, 5: 1, 9: 1} {
		b := newBench(t, func(c *Config) { c.Batches = batches })
		var all []*player
		for id := range 5 {
			all = append(all, b.opened(tandem.SessionID(id+1)))
		}
		for _, p := range all {
			b.queue(p, 2)
			p.rhythm = time.Hour // all are expected again
		}
		for waited := 0; b.Load().Queued > 0; waited++ {
			first := b.line[0].(*player)
			took := 0
			for _, rows := range b.step(all...) {
				if rows > 0 {
					took++
				}
			}
			for _, p := range all {
				p.turns = nil
			}
			if first.Busy() {
				t.Errorf("%d batches: the pass left out the session that waited longest", batches)
			}
			if left := b.Load().Queued; took != want && left > 0 || waited > 5 {
				t.Fatalf("%d batches of 5 sessions: %d in pass %d, want %d", batches, took, waited, want)
			}
		}
	}
}

// TestBatchIsFull: with batches a pass waits until a batch is there, but not for sessions that are overdue, and not while a prompt can
// be computed.
func TestBatchIsFull(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Patience, c.Batches = 1, 1 })
	here, next, prompt := b.opened(1), b.opened(2), b.opened(3)
	now := time.Now()
	b.Queue(here, nil, now, 4)
	waits := func(at time.Duration) bool { return b.waits(now.Add(at), b.batchSize(now.Add(at))) }
	next.answered, next.rhythm, next.rows = now, 500*time.Millisecond, 4
	if !waits(0) || !waits(900*time.Millisecond) {
		t.Error("does not wait for a session that is due, however long a pass takes")
	}
	if waits(1100 * time.Millisecond) {
		t.Error("waits for a session that is overdue")
	}
	if b.SetBatches(2); waits(0) {
		t.Error("waits although half of the sessions are queued")
	}
	b.SetBatches(1)
	b.Drop(prompt, nil)
	b.Enter(b.player(3, 100), NewCall(context.Background()))
	if waits(0) {
		t.Error("waits although a prompt could be computed")
	}
}

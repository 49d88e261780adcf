package schedule

import (
	"context"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
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
	if b.SetBatches(2, false); waits(0) {
		t.Error("waits although half of the sessions are queued")
	}
	b.SetBatches(1, false)
	b.Drop(prompt, nil)
	b.Enter(b.player(3, 100), NewCall(context.Background()))
	if waits(0) {
		t.Error("waits although a prompt could be computed")
	}
}

// TestBatchesAreWeighed: sessions are divided while the passes of all batches, or one of them and the time between a session's rounds, are
// shorter than a pass for all and that time. So they are not where rows cost nothing, or where sessions are hardly away.
func TestBatchesAreWeighed(t *testing.T) {
	rows := []tandem.Cost{{Rows: 1, Time: 11 * time.Millisecond}, {Rows: 100, Time: 110 * time.Millisecond}}
	flat := []tandem.Cost{{Rows: 1, Time: 10 * time.Millisecond}, {Rows: 100, Time: 11 * time.Millisecond}}
	for name, c := range map[string]struct {
		costs          []tandem.Cost
		away           time.Duration
		sessions, size int
	}{
		"rows cost, away for half of a pass":  {rows, 20 * time.Millisecond, 8, 4},
		"rows cost, away for many passes":     {rows, time.Second, 8, undivided},
		"rows cost, hardly away":              {rows, time.Millisecond, 8, undivided},
		"rows cost nothing, away for a third": {flat, 4 * time.Millisecond, 8, undivided},
		"rows cost nothing, away for as long": {flat, 20 * time.Millisecond, 8, undivided},
		"one session":                         {rows, 20 * time.Millisecond, 1, undivided},
		"away for an unknown time":            {rows, 0, 8, undivided},
		"nothing is known of passes":          {nil, 20 * time.Millisecond, 8, undivided},
	} {
		b := newBench(t, func(x *Config) { x.Costs, x.Batches, x.Weighed = c.costs, 2, true })
		now := time.Now()
		for id := range c.sessions {
			p := b.opened(tandem.SessionID(id + 1))
			b.Queue(p, nil, now, 4)
			p.rhythm = c.away
		}
		if c.costs == nil {
			b.costs = worth.NewCosts(nil)
		}
		if got := b.batchSize(now); got != c.size {
			t.Errorf("%s: batches of %d, want %d", name, got, c.size)
		}
	}
}

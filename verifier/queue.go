package verifier

import (
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
)

// queue is the pool: the tickets of all drafters and gateways that wait for a pass, whichever way they came. At most
// Config.MaxWaiting wait. The tickets of the running pass do not count, so the next batch can gather meanwhile (Minions' pool: drafters
// pause while it is full, and resume when it holds less). Safe for concurrent use.
type queue struct {
	most     int
	counters *tandem.Counters

	mu    sync.Mutex
	waits []*queued // first come first
}

// queued is a ticket in a queue.
type queued struct {
	in      *queue
	drafter string
	came    time.Time
	left    bool // under queue.mu
}

func newQueue(most int, counters *tandem.Counters) *queue {
	return &queue{most: most, counters: counters}
}

// enter queues a ticket; nil if as many wait as may.
func (q *queue) enter(t tandem.Ticket) *queued {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waits) >= q.most {
		return nil
	}
	x := &queued{in: q, drafter: t.Drafter, came: time.Now()}
	q.waits = append(q.waits, x)
	return x
}

// leave takes a ticket out of its queue: it is in a pass or is answered. A second call does nothing.
func (x *queued) leave() {
	q := x.in
	q.mu.Lock()
	defer q.mu.Unlock()
	if x.left {
		return
	}
	x.left = true
	q.waits = slices.DeleteFunc(q.waits, func(other *queued) bool { return other == x })
	q.counters.Add("tickets.waited_us", time.Since(x.came).Microseconds())
}

// Waiting describes the tickets that wait for a pass at one moment.
type Waiting struct {
	Tickets, Most int            // how many wait, and how many may: Config.MaxWaiting
	Oldest        time.Duration  // how long the first of them has waited
	Of            map[string]int // tickets by drafter; "" for those without a draft
}

// waiting returns what waits now.
func (q *queue) waiting() Waiting {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := Waiting{Tickets: len(q.waits), Most: q.most, Of: map[string]int{}}
	for _, x := range q.waits {
		out.Of[x.drafter]++
	}
	if len(q.waits) > 0 {
		out.Oldest = time.Since(q.waits[0].came)
	}
	return out
}

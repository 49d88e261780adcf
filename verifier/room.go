package verifier

import (
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
)

// room is the pool: the tickets of all drafters and gateways that wait for a pass, whichever way they came. At most
// Config.MaxWaiting wait. The tickets of the running pass do not count, so the next batch can gather meanwhile (Minions' pool: drafters
// pause while it is full, and resume when it holds less). Safe for concurrent use.
type room struct {
	most     int
	counters *tandem.Counters

	mu    sync.Mutex
	waits []*place // first come first
}

// place is one ticket's in the room.
type place struct {
	drafter string
	came    time.Time
	left    bool // under room.mu
}

func newRoom(most int, counters *tandem.Counters) *room {
	return &room{most: most, counters: counters}
}

// enter takes a place for a ticket; nil if all are taken.
func (r *room) enter(t tandem.Ticket) *place {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waits) >= r.most {
		return nil
	}
	p := &place{drafter: t.Drafter, came: time.Now()}
	r.waits = append(r.waits, p)
	return p
}

// leave gives a place back: its ticket is in a pass or is answered. A second call does nothing.
func (r *room) leave(p *place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.left {
		return
	}
	p.left = true
	r.waits = slices.DeleteFunc(r.waits, func(x *place) bool { return x == p })
	r.counters.Add("tickets.waited_us", time.Since(p.came).Microseconds())
}

// Waiting describes the tickets that wait for a pass at one moment.
type Waiting struct {
	Tickets, Most int
	Oldest        time.Duration  // how long the first of them has waited
	Of            map[string]int // tickets by drafter; "" for those without a draft
}

// Waiting returns what waits now, without waiting for a pass.
func (v *Verifier) Waiting() Waiting {
	r := v.room
	r.mu.Lock()
	defer r.mu.Unlock()
	out := Waiting{Tickets: len(r.waits), Most: r.most, Of: map[string]int{}}
	for _, p := range r.waits {
		out.Of[p.drafter]++
	}
	if len(r.waits) > 0 {
		out.Oldest = time.Since(r.waits[0].came)
	}
	return out
}

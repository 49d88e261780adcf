package admit

import (
	"context"
	"time"
)

// Need says whose a request is, and what it may hold in the verifier's KV cache.
type Need struct {
	Tenant string // "" where clients have no keys: then all are one tenant
	Tokens int    // the most that it commits: prompt and budget
	First  int    // tokens that it counts with until Grow or Yield; 0: Tokens
	Rows   int    // of its largest tree, without the root, which is committed
}

// pages returns how many pages of page tokens that takes, as engine/kv reserves them.
func (n Need) pages(page int) int { return (n.Tokens+page-1)/page + (n.Rows+page-1)/page }

// Slot is one request at the gate, from Enter to Leave. While it is parked it holds no slot and waits for none.
type Slot struct {
	need     Need               // Tokens is what counts now
	most     int                // the most that Tokens grows to
	came     uint64             // number of its request, of all that came, in order
	number   uint64             // the same, but of its latest arrival in the queue
	turn     chan struct{}      // closed when the request may run, or err is set
	err      error              // why it never may run
	passed   int                // later requests that were admitted before it
	begun    time.Time          // when it was admitted
	since    time.Time          // when it began to wait
	opened   time.Time          // when the peers held it, since it was admitted; zero: they do not yet
	reopens  time.Duration      // that it took until they did, the last time
	broken   int                // times that it was asked to leave before they did
	asked    context.Context    // ends when it should yield
	ask      context.CancelFunc // ends asked
	parked   bool               // it gave its slot back and may return
	alone    bool               // it may run only when no other does
	returned bool               // it was inside before: a full queue does not refuse it
}

// tenant holds the requests of one tenant at the gate.
type tenant struct {
	name    string
	waiting []*Slot // in the order of admission: those that return, then the others as they came
	inside  int
	parked  int    // that gave their slots back and may return
	held    int    // pages of those inside
	served  uint64 // when one of its requests was last admitted, in admissions; 0: never
}

// queued returns how many requests of the tenant count against the queue's length.
func (t *tenant) queued() (n int) {
	for _, p := range t.waiting {
		if !p.returned {
			n++
		}
	}
	return n
}

// since returns the number of the tenant's request that waits longest. There must be one.
func (t *tenant) since() uint64 {
	first := t.waiting[0].number
	for _, p := range t.waiting {
		first = min(first, p.number)
	}
	return first
}

func newSlot(n Need, number uint64) *Slot {
	p := &Slot{need: n, most: n.Tokens, came: number, number: number, turn: make(chan struct{}), since: time.Now()}
	if n.First > 0 {
		p.need.Tokens = min(n.First, n.Tokens)
	}
	return p
}

// whole returns the most that p's request may need.
func (p *Slot) whole() Need {
	n := p.need
	n.Tokens = p.most
	return n
}

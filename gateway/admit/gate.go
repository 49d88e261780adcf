// Package admit lets requests run as far as there are places and memory for them, and lets others wait in order.
package admit

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
)

const op = "generate"

const (
	// mostPassed is how many later requests may be admitted before one that waits for memory: enough that
	// short requests use what a long one cannot, few enough that it need not wait for long.
	mostPassed = 4
	// firstRetry is the retry time that a refused request is told before any has ended.
	firstRetry = time.Second
	// meanOf is over about how many requests the running mean of their durations goes.
	meanOf = 8
)

// Need is what a request may come to hold in the verifier's KV cache.
type Need struct {
	Tokens int // committed: prompt and budget
	Rows   int // of its largest tree, the root not counted: it is committed
}

// pages returns how many pages of so many tokens that takes, as engine/kv reserves them.
func (n Need) pages(page int) int { return (n.Tokens+page-1)/page + (n.Rows+page-1)/page }

// Place is one request's, from the gate's queue to the request's end.
type Place struct {
	need   Need
	turn   chan struct{} // closed when the request may run, or err is set
	err    error         // why it never will
	passed int           // later requests that were admitted before it
	begun  time.Time     // when it was admitted
}

// Gate lets requests run as far as there are places and KV memory at the verifier for all they may come
// to hold, and lets a bounded number wait. Whatever becomes free goes to those that wait, first come first
// served, so no newcomer can overtake them. One exception: while the first in the queue does not fit in
// the memory that is free, later ones that do fit may pass it, mostPassed times; then all wait until it fits.
//
// Invariants, once the capacity has been the same since the requests inside came in: (1) at most sessions
// requests are inside, and their pages are at most those of the capacity; (2) at most queue requests wait;
// (3) while any wait, a place or memory for the first of those that may not be passed is missing; (4)
// no request waits for a capacity that there is not.
type Gate struct {
	sessions int // may run at once
	queue    int // may wait

	mu      sync.Mutex
	total   int // pages of the verifier; 0 while unknown: then sessions alone count
	page    int // tokens of a page
	inside  map[*Place]struct{}
	held    int // pages of those inside
	waiting []*Place
	mean    time.Duration // running mean of the time that requests were inside; 0 before the first has ended
}

// New returns a gate for so many requests at once, and so many that wait.
func New(sessions, queue int) *Gate {
	return &Gate{sessions: sessions, queue: queue, inside: map[*Place]struct{}{}}
}

// Capacity tells the gate how many tokens the verifier's KV cache holds, in pages of pageTokens; 0 of
// either means that it is unknown. Requests that wait for more than there is now are refused.
func (g *Gate) Capacity(kvTokens int64, pageTokens int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total, g.page, g.held = 0, 0, 0
	if kvTokens > 0 && pageTokens > 0 {
		g.total, g.page = int(kvTokens/int64(pageTokens)), pageTokens
	}
	for p := range g.inside {
		g.held += g.pages(p)
	}
	g.waiting = slices.DeleteFunc(g.waiting, func(p *Place) bool {
		if p.err = g.impossible(p.need); p.err == nil {
			return false
		}
		close(p.turn)
		return true
	})
	g.admit()
}

// Enter waits for a place; the caller must Leave it. Errors: Invalid (the request needs more memory than
// there is), Exhausted (the queue is full; with the time after which to try again), or why ctx ended.
func (g *Gate) Enter(ctx context.Context, n Need) (*Place, error) {
	if ctx.Err() != nil {
		return nil, ended(ctx, "before it was admitted")
	}
	p, err := g.join(n)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.turn:
		return p, p.err
	case <-ctx.Done():
		g.giveUp(p)
		return nil, ended(ctx, "while it waited for a place")
	}
}

// join puts a request into the queue, and through the gate if there is room.
func (g *Gate) join(n Need) (*Place, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.impossible(n); err != nil {
		return nil, err
	}
	p := &Place{need: n, turn: make(chan struct{})}
	g.waiting = append(g.waiting, p)
	g.admit()
	if at := len(g.waiting); at > g.queue && g.waiting[at-1] == p {
		g.waiting = g.waiting[:at-1]
		return nil, g.refuse()
	}
	return p, nil
}

// impossible refuses what could not run even alone. g.mu must be held.
func (g *Gate) impossible(n Need) error {
	if g.total == 0 || n.pages(g.page) <= g.total {
		return nil
	}
	return tandem.Errorf(op, tandem.Invalid, "prompt and max_tokens make %d tokens, with %d rows for trees %d pages of %d Tokens: the verifier's memory holds %d pages",
		n.Tokens, n.Rows, n.pages(g.page), g.page, g.total)
}

// refuse says that there is no room, and when there may be: the requests before this one, at the rate at
// which those inside end. g.mu must be held.
func (g *Gate) refuse() error {
	after := firstRetry
	if g.mean > 0 {
		after = g.mean * time.Duration(len(g.waiting)+1) / time.Duration(max(len(g.inside), 1))
	}
	err := tandem.Errorf(op, tandem.Exhausted, "%d requests run and %d wait, and no more may: try again in %v",
		len(g.inside), len(g.waiting), after.Round(time.Millisecond))
	err.(*tandem.Error).RetryAfter = after
	return err
}

func (g *Gate) pages(p *Place) int {
	if g.total == 0 {
		return 0
	}
	return p.need.pages(g.page)
}

// admit lets in who may come in. g.mu must be held.
func (g *Gate) admit() {
	for i := 0; i < len(g.waiting) && len(g.inside) < g.sessions; {
		p := g.waiting[i]
		n := g.pages(p)
		if g.total > 0 && g.held+n > g.total {
			if p.passed == mostPassed {
				return
			}
			i++
			continue
		}
		for _, other := range g.waiting[:i] {
			other.passed++
		}
		g.waiting = slices.Delete(g.waiting, i, i+1)
		g.inside[p] = struct{}{}
		g.held += n
		p.begun = time.Now()
		close(p.turn)
		i = 0 // those before may have been passed often enough now
	}
}

// giveUp ends a request's wait.
func (g *Gate) giveUp(p *Place) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, p); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	g.remove(p) // its turn may have come in the same moment
	g.admit()
}

// Leave gives a place back.
func (g *Gate) Leave(p *Place) {
	g.mu.Lock()
	defer g.mu.Unlock()
	took := time.Since(p.begun)
	if g.mean == 0 {
		g.mean = took
	}
	g.mean += (took - g.mean) / meanOf
	g.remove(p)
	g.admit()
}

// remove forgets a place inside, if p has one. g.mu must be held.
func (g *Gate) remove(p *Place) {
	if _, in := g.inside[p]; in {
		delete(g.inside, p)
		g.held -= g.pages(p)
	}
}

// Load returns how many requests are inside and how many wait.
func (g *Gate) Load() (running, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.inside), len(g.waiting)
}

// ended returns the error of a request whose ctx has ended.
func ended(ctx context.Context, at string) error {
	cause := context.Cause(ctx)
	return tandem.Errorf(op, tandem.KindOf(cause), "ended %s: %w", at, cause)
}

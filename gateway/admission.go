package gateway

import (
	"context"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
)

// gate lets a bounded number of requests run and a bounded number wait, first come first served. A
// place that becomes free is handed to the first waiter directly, so no newcomer can overtake it.
type gate struct {
	sessions int // may run at once
	queue    int // may wait

	mu      sync.Mutex
	inside  int
	waiting []chan struct{} // each closed when its owner may run; the place is its owner's from then on
}

// enter waits for a place. Errors: Exhausted (the queue is full), or why ctx ended.
func (g *gate) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return ended(ctx, "before it was admitted")
	}
	turn, err := g.join()
	if turn == nil {
		return err
	}
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		g.giveUp(turn)
		return ended(ctx, "while it waited for a place")
	}
}

// join takes a place if one is free (nil, nil), else a place in the queue.
func (g *gate) join() (chan struct{}, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside < g.sessions {
		g.inside++
		return nil, nil
	}
	if len(g.waiting) >= g.queue {
		return nil, tandem.Errorf(op, tandem.Exhausted, "%d requests run and %d wait, and no more may: try again later", g.inside, len(g.waiting))
	}
	turn := make(chan struct{})
	g.waiting = append(g.waiting, turn)
	return turn, nil
}

func (g *gate) giveUp(turn chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, turn); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
		return
	}
	g.pass() // its turn came in the same moment
}

// leave gives a place back.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pass()
}

// pass hands the caller's place on. g.mu must be held.
func (g *gate) pass() {
	if len(g.waiting) == 0 {
		g.inside--
		return
	}
	close(g.waiting[0])
	g.waiting = slices.Delete(g.waiting, 0, 1)
}

func (g *gate) running() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inside
}

// crew counts the gateway's requests and goroutines, so that Shutdown can wait for all of them.
type crew struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{} // closed once closed is set and n is 0
}

// join admits a request unless the crew is closed.
func (c *crew) join() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return tandem.Errorf(op, tandem.Unavailable, "gateway is shutting down")
	}
	c.n++
	return nil
}

func (c *crew) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.closed {
		close(c.idle)
	}
}

// run starts f in a goroutine. The caller must be of the crew, so that n is not 0 here.
func (c *crew) run(f func()) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	go func() {
		defer c.leave()
		f()
	}()
}

// close refuses newcomers and returns the channel that closes when the last has left.
func (c *crew) close() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		if c.n == 0 {
			close(c.idle)
		}
	}
	return c.idle
}

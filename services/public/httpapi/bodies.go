package httpapi

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	smallBody = 64 << 10 // bytes of a body that are read before it counts
	stepBody  = 64 << 10 // bytes that a larger one takes at once, shortly before they come
	allBodies = 32 << 20 // bytes of all larger largeBodies that are read at once, as far as they have come
	mostOver  = 8        // tenants that may each have one body beyond allBodies

	leastRate = 256 << 10       // bytes a second: a large body that comes more slowly gives way to waiting ones
	rateAfter = 2 * time.Second // time before a body's rate counts
	lookEvery = 250 * time.Millisecond
)

// largeBodies shares memory among the large bodies that are being read. What has come counts, not what was announced: else clients that
// announce much and send nothing would keep all others out.
//
//  1. The next share goes to the tenant that holds least, and among its largeBodies to the one that has waited longest.
//  2. If nothing is free, one body of each of mostOver tenants goes on all the same. So there is always one that comes to its end, and a
//     tenant does not wait for another's.
//  3. While any body waits, those that come more slowly than leastRate end.
//
// Safe for concurrent use.
type largeBodies struct {
	mu      sync.Mutex
	free    int64            // below 0 by what the largeBodies in over took beyond allBodies
	held    map[string]int64 // bytes, by tenant
	waiting []*waiter        // first come first
	over    map[string]*body // of each tenant at most one, which took more than was free
	reading map[*body]struct{}
}

// waiter is a body that waits for a step.
type waiter struct {
	b   *body
	got chan struct{} // closed once it is granted
}

func newBodies() *largeBodies {
	return &largeBodies{free: allBodies, held: map[string]int64{}, over: map[string]*body{}, reading: map[*body]struct{}{}}
}

// grow takes a step for b. If b has to wait, it calls paused first. Errors: Deadline or Canceled, as of ctx.
func (s *largeBodies) grow(ctx context.Context, b *body, paused func()) error {
	w := &waiter{b: b, got: make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.serve()
	s.mu.Unlock()
	select {
	case <-w.got:
		return nil
	default:
	}
	paused()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-w.got:
			return nil
		case <-look.C:
			s.hurry(time.Now())
		case <-ctx.Done():
			if s.withdraw(w) {
				return tandem.Errorf(op, tandem.KindOf(ctx.Err()), "%d bytes are not free: %w", int64(stepBody), ctx.Err())
			}
			return nil
		}
	}
}

// withdraw takes a waiter out of the queue; false if it was granted.
func (s *largeBodies) withdraw(w *waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range s.waiting {
		if x == w {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// serve grants what can be granted; s is locked.
func (s *largeBodies) serve() {
	for len(s.waiting) > 0 {
		next := s.next(func(*body) bool { return s.free >= stepBody })
		if next < 0 {
			next = s.next(s.mayExceed)
		}
		if next < 0 {
			return
		}
		b := s.waiting[next].b
		if s.free < stepBody {
			s.over[b.c.tenant] = b
		}
		s.free -= stepBody
		s.held[b.c.tenant] += stepBody
		b.held += stepBody
		if _, ok := s.reading[b]; !ok { // its first step, or it had to wait
			b.readsOn(time.Now())
			s.reading[b] = struct{}{}
		}
		close(s.waiting[next].got)
		s.waiting = append(s.waiting[:next], s.waiting[next+1:]...)
	}
}

// next returns the waiter whose turn it is among those that may, -1 for none; s is locked.
func (s *largeBodies) next(may func(*body) bool) int {
	out := -1
	for i, w := range s.waiting {
		if may(w.b) && (out < 0 || s.held[w.b.c.tenant] < s.held[s.waiting[out].b.c.tenant]) {
			out = i
		}
	}
	return out
}

// mayExceed reports whether b may take more than is free; s is locked.
func (s *largeBodies) mayExceed(b *body) bool {
	of, ok := s.over[b.c.tenant]
	return of == b || !ok && len(s.over) < mostOver
}

// read notes that no more of b is read; it holds what it has.
func (s *largeBodies) read(b *body) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reading, b)
}

// release gives back what b holds. It may be called again.
func (s *largeBodies) release(b *body) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reading, b)
	if b.held == 0 {
		return
	}
	tenant := b.c.tenant
	s.free += b.held
	if s.held[tenant] -= b.held; s.held[tenant] == 0 {
		delete(s.held, tenant)
	}
	b.held = 0
	if s.over[tenant] == b {
		delete(s.over, tenant)
	}
	s.serve()
}

// hurry ends largeBodies that come too slowly.
func (s *largeBodies) hurry(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for b := range s.reading {
		held := time.Duration(ticks(now) - b.since.Load())
		if held > rateAfter && float64(b.n.Load()-b.at.Load()) < leastRate*held.Seconds() {
			b.tooSlow.Store(true)
			_ = b.rc.SetReadDeadline(time.Now())
		}
	}
}

// Package route decides how a ticket reaches the verifier: through the pool, where the tickets of all drafters and gateways meet,
// or, while the pool cannot be reached, directly. Nothing else bypasses the pool.
package route

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	op = "route"

	firstDetour = 50 * time.Millisecond // after a pool that did not answer, before it is tried again; doubles
	longDetour  = 2 * time.Second
)

// Config is what a Router decides between.
type Config struct {
	Verifier tandem.Verifier // reached without the pool: in this process, or by gRPC
	Pool     tandem.Pool     // from which the verifier takes tickets
	PoolUp   func() bool     // reports without waiting whether Pool can be reached; nil: unknown
	Events   tandem.Events
	Counters *tandem.Counters // "tickets.direct": those that bypassed the pool; may be nil
}

// Router implements tandem.Verifier for one verifier that can be reached in two ways. Tickets go through the pool; while the pool is
// Unavailable they go directly to the verifier, and after a while the pool is tried again. All other calls go directly. Safe for concurrent
// use.
type Router struct {
	tandem.Verifier
	cfg   Config
	place atomic.Pointer[tandem.Place] // nil: the only verifier of its group, with no queue of its own

	mu     sync.Mutex
	detour time.Duration // length of the next detour past the pool; 0 after the pool took a ticket
	until  time.Time     // end of the detour under way
}

// New returns a router that uses cfg's verifier and pool, which stay the caller's.
func New(cfg Config) *Router {
	if cfg.Counters == nil {
		cfg.Counters = new(tandem.Counters)
	}
	return &Router{Verifier: cfg.Verifier, cfg: cfg}
}

// At says at which place of the pool the verifier takes tickets from now on.
func (r *Router) At(p tandem.Place) { r.place.Store(&p) }

func (r *Router) now() (p tandem.Place) {
	if at := r.place.Load(); at != nil {
		p = *at
	}
	return p
}

// Submit implements tandem.Verifier.Submit.
func (r *Router) Submit(ctx context.Context, t tandem.Ticket) error {
	t.Queue = r.now().Queue
	if r.poolUp() {
		begun := time.Now()
		err := r.cfg.Pool.Put(ctx, t)
		if r.came(err, time.Since(begun)); tandem.KindOf(err) != tandem.Unavailable || ctx.Err() != nil {
			return err
		}
	}
	err := r.Verifier.Submit(ctx, t)
	if err == nil {
		r.cfg.Counters.Add("tickets.direct", 1)
	}
	return err
}

// poolUp reports whether the next ticket goes to the pool.
func (r *Router) poolUp() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return (r.cfg.PoolUp == nil || r.cfg.PoolUp()) && time.Now().After(r.until)
}

// came takes the result of a Put. A pool that failed slowly, because its server does not answer, is not
// tried again soon.
func (r *Router) came(err error, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if tandem.KindOf(err) != tandem.Unavailable {
		r.detour = 0
		return
	}
	r.detour = min(max(2*r.detour, firstDetour, 4*took), longDetour)
	r.until = time.Now().Add(r.detour)
}

// Package mempool is a pool within one process: a tandem without services, for tests and embedding.
package mempool

import (
	"context"
	"sync"

	"github.com/tandem-llm/tandem"
)

// Pool is a bounded queue of tickets. It implements tandem.Pool and tandem.TicketSource and loses,
// repeats and reorders nothing. It does not check trees: within a process their maker has checked them, and
// the verifier checks again. Safe for concurrent use.
type Pool struct {
	tickets chan tandem.Ticket
	closed  chan struct{}
	once    sync.Once
}

// New returns a pool that holds up to capacity tickets, at least one. Tickets that already wait at the verifier do not
// count (verifier.Config.MaxWaiting).
func New(capacity int) *Pool {
	return &Pool{tickets: make(chan tandem.Ticket, max(capacity, 1)), closed: make(chan struct{})}
}

// Put implements tandem.Pool.
func (p *Pool) Put(ctx context.Context, t tandem.Ticket) error {
	select {
	case <-p.closed:
		return tandem.Errorf("pool", tandem.Unavailable, "pool is closed")
	case <-ctx.Done():
		return tandem.Errorf("pool", tandem.KindOf(ctx.Err()), "put of session %v: %w", t.Session, ctx.Err())
	default:
	}
	select {
	case p.tickets <- t:
		return nil
	default:
		return tandem.Errorf("pool", tandem.Exhausted, "pool holds %d tickets, as many as it may", cap(p.tickets))
	}
}

// Take implements tandem.TicketSource.
func (p *Pool) Take(ctx context.Context, most int) ([]tandem.Ticket, error) {
	var taken []tandem.Ticket
	select {
	case t := <-p.tickets:
		taken = append(taken, t)
	case <-p.closed:
		return nil, tandem.Errorf("pool", tandem.Unavailable, "pool is closed")
	case <-ctx.Done():
		return nil, tandem.Errorf("pool", tandem.KindOf(ctx.Err()), "waiting for tickets: %w", ctx.Err())
	}
	for len(taken) < most {
		select {
		case t := <-p.tickets:
			taken = append(taken, t)
		default:
			return taken, nil
		}
	}
	return taken, nil
}

// Before returns v with this pool in front of it: submitted tickets are put into the pool, from which v must take
// them.
func (p *Pool) Before(v tandem.Verifier) tandem.Verifier { return before{v, p} }

type before struct {
	tandem.Verifier
	pool *Pool
}

func (b before) Submit(ctx context.Context, t tandem.Ticket) error { return b.pool.Put(ctx, t) }

// Close ends all Takes and refuses further Puts; tickets in the pool are forgotten.
func (p *Pool) Close() { p.once.Do(func() { close(p.closed) }) }

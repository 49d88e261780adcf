package draftertest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// Pool is a pool that keeps its tickets for the test.
type Pool struct {
	Tickets chan tandem.Ticket
	Gone    atomic.Bool
}

func NewPool(most int) *Pool { return &Pool{Tickets: make(chan tandem.Ticket, most)} }

// Put implements tandem.Pool.
func (q *Pool) Put(_ context.Context, t tandem.Ticket) error {
	if q.Gone.Load() {
		return tandem.Errorf("pool", tandem.Unavailable, "gone")
	}
	select {
	case q.Tickets <- t:
		return nil
	default:
		return tandem.Errorf("pool", tandem.Exhausted, "%d tickets wait", cap(q.Tickets))
	}
}

// Take returns the next ticket.
func (q *Pool) Take(t testing.TB) tandem.Ticket {
	t.Helper()
	select {
	case k := <-q.Tickets:
		return k
	case <-time.After(30 * time.Second):
		t.Fatal("no ticket came")
		return tandem.Ticket{}
	}
}

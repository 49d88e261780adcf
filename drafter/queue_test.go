package drafter

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// queue is a pool that keeps its tickets for the test.
type queue struct {
	tickets chan tandem.Ticket
	gone    atomic.Bool
}

func newQueue(most int) *queue { return &queue{tickets: make(chan tandem.Ticket, most)} }

// Put implements tandem.Pool.
func (q *queue) Put(_ context.Context, t tandem.Ticket) error {
	if q.gone.Load() {
		return tandem.Errorf("pool", tandem.Unavailable, "gone")
	}
	select {
	case q.tickets <- t:
		return nil
	default:
		return tandem.Errorf("pool", tandem.Exhausted, "%d tickets wait", cap(q.tickets))
	}
}

// take returns the next ticket.
func (q *queue) take(t testing.TB) tandem.Ticket {
	t.Helper()
	select {
	case k := <-q.tickets:
		return k
	case <-time.After(30 * time.Second):
		t.Fatal("no ticket came")
		return tandem.Ticket{}
	}
}

package mempool

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

var (
	_ tandem.Pool         = (*Pool)(nil)
	_ tandem.TicketSource = (*Pool)(nil)
)

func TestPool(t *testing.T) {
	ctx := context.Background()
	p := New(3)
	for i := range 3 {
		if err := p.Put(ctx, tandem.Ticket{Base: tandem.Position(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Put(ctx, tandem.Ticket{}); !errors.Is(err, tandem.Exhausted) {
		t.Errorf("fourth Put: %v, want Exhausted", err)
	}
	for _, want := range []int{2, 1} {
		got, err := p.Take(ctx, 2)
		if err != nil || len(got) != want {
			t.Errorf("Take = %v, %v, want %d tickets", got, err, want)
		}
	}
	soon, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := p.Take(soon, 1); !errors.Is(err, tandem.Deadline) {
		t.Errorf("Take from an empty pool: %v, want Deadline", err)
	}
	if err := p.Put(soon, tandem.Ticket{}); !errors.Is(err, tandem.Deadline) {
		t.Errorf("Put with an ended context: %v, want Deadline", err)
	}
	p.Close()
	p.Close()
	if _, err := p.Take(ctx, 1); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("Take after Close: %v, want Unavailable", err)
	}
	if err := p.Put(ctx, tandem.Ticket{}); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("Put after Close: %v, want Unavailable", err)
	}
}

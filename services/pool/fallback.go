package pool

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	firstDetour = 50 * time.Millisecond // after a pool that did not answer, before it is tried again; doubles
	longDetour  = 2 * time.Second
)

// Fallback implements tandem.Pool over two of them: tickets go to First, and to Second while First is
// Unavailable, which is tried again after a while. Safe for concurrent use.
type Fallback struct {
	First    tandem.Pool
	Second   tandem.Pool
	Up       func() bool      // reports at no cost whether First can be reached; nil: it may be
	Counters *tandem.Counters // "tickets.direct": those that Second took; may be nil

	mu     sync.Mutex
	detour time.Duration // the next one's length; 0 after a success of First
	until  time.Time     // of the detour under way
}

// PoolUp reports whether the next ticket goes to First.
func (f *Fallback) PoolUp() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return (f.Up == nil || f.Up()) && time.Now().After(f.until)
}

// Put implements tandem.Pool.Put.
func (f *Fallback) Put(ctx context.Context, t tandem.Ticket) error {
	var first error
	if f.PoolUp() {
		begun := time.Now()
		first = f.First.Put(ctx, t)
		if f.came(first, time.Since(begun)); tandem.KindOf(first) != tandem.Unavailable || ctx.Err() != nil {
			return first
		}
	}
	err := f.Second.Put(ctx, t)
	if err == nil && f.Counters != nil {
		f.Counters.Add("tickets.direct", 1)
	}
	return err
}

// came takes the result of a Put of First. One that took long, because the server does not answer, is not
// paid for again soon.
func (f *Fallback) came(err error, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if tandem.KindOf(err) != tandem.Unavailable {
		f.detour = 0
		return
	}
	f.detour = min(max(2*f.detour, firstDetour, 4*took), longDetour)
	f.until = time.Now().Add(f.detour)
}

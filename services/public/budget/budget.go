// Package budget shares a number of bytes of memory among requests.
package budget

import (
	"context"
	"sync"

	"github.com/tandem-llm/tandem"
)

// Budget is a number of bytes. Callers wait until the bytes that they need are free, in the order of asking; those who
// need less do not overtake. Safe for concurrent use.
type Budget struct {
	all int64

	mu      sync.Mutex
	free    int64
	waiting []*waiter
}

type waiter struct {
	bytes int64
	got   chan struct{} // closed once the bytes are granted
}

// New returns a budget of so many bytes.
func New(bytes int64) *Budget { return &Budget{all: bytes, free: bytes} }

// Take waits for bytes; a larger number than the budget counts as the whole budget. The caller must call giveBack once.
// Errors: that of ctx, as tandem.Deadline or tandem.Canceled.
func (b *Budget) Take(ctx context.Context, bytes int64) (giveBack func(), err error) {
	bytes = min(max(bytes, 0), b.all)
	w := b.ask(bytes)
	select {
	case <-w.got:
	case <-ctx.Done():
		if b.withdraw(w) {
			return nil, tandem.Errorf("memory", tandem.KindOf(ctx.Err()), "%d bytes are not free: %w", bytes, ctx.Err())
		}
	}
	return sync.OnceFunc(func() { b.give(bytes) }), nil
}

// TryTake takes bytes if they are free now, and reports whether they were. Give gives them back.
func (b *Budget) TryTake(bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) > 0 || bytes > b.free {
		return false
	}
	b.free -= bytes
	return true
}

// Give gives back what TryTake took.
func (b *Budget) Give(bytes int64) { b.give(bytes) }

func (b *Budget) ask(bytes int64) *waiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := &waiter{bytes: bytes, got: make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.serve()
	return w
}

// withdraw takes a waiter out of the queue; false if it was granted.
func (b *Budget) withdraw(w *waiter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, x := range b.waiting {
		if x == w {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.serve() // those behind may need less
			return true
		}
	}
	return false
}

func (b *Budget) give(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += bytes
	b.serve()
}

// serve grants wishes in their order; b is locked.
func (b *Budget) serve() {
	for len(b.waiting) > 0 && b.waiting[0].bytes <= b.free {
		b.free -= b.waiting[0].bytes
		close(b.waiting[0].got)
		b.waiting = b.waiting[1:]
	}
}

package budget

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

func TestTakeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, ctx := New(10), t.Context()
		first, err := b.Take(ctx, 7)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order []int64
		var wg sync.WaitGroup
		for _, n := range []int64{100, 1, 2} { // 100 counts as all, and nobody passes it
			wg.Go(func() {
				back, err := b.Take(ctx, n)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, n)
				mu.Unlock()
				testkit.Sleep(time.Second)
				back()
				back() // once is enough
			})
			synctest.Wait()
		}
		if !b.crowded() || b.TryTake(1) {
			t.Error("what is waited for is given to another")
		}
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if _, err := b.Take(short, 1); tandem.KindOf(err) != tandem.Deadline || len(order) != 0 {
			t.Errorf("%v after %v", err, order)
		}
		first()
		wg.Wait()
		if len(order) != 3 || order[0] != 100 || b.free != 10 || b.crowded() {
			t.Errorf("order %v, %d bytes are free", order, b.free)
		}
		if !b.TryTake(10) || b.TryTake(1) {
			t.Error("not all bytes can be taken")
		}
		b.Give(10)
	})
}

// TestWithdrawn: one that waits no longer does not keep out those behind it.
func TestWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(10)
		back, _ := b.Take(t.Context(), 5)
		defer back()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := b.Take(ctx, 6); tandem.KindOf(err) != tandem.Canceled {
				t.Error(err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			back, err := b.Take(t.Context(), 5)
			if err != nil {
				t.Error(err)
			}
			back()
		})
		synctest.Wait()
		cancel()
		wg.Wait()
	})
}

// TestNeverMore has many take and give back, some of whom lose patience: never more is taken than there is, and in the end all
// is there.
func TestNeverMore(t *testing.T) {
	b := New(1000)
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(200))*time.Microsecond)
				n := rand.Int64N(400)
				if back, err := b.Take(ctx, n); err == nil {
					if now := taken.Add(n); now > 1000 {
						t.Errorf("%d of 1000 bytes are taken", now)
					}
					taken.Add(-n)
					back()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if b.free != 1000 || b.crowded() {
		t.Errorf("%d bytes are free", b.free)
	}
}

// crowded reports whether anybody waits.
func (b *Budget) crowded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting) > 0
}

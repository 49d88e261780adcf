package route

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// counted is a pool and a verifier that counts tickets and answers what it is told.
type counted struct {
	tandem.Verifier // nil: of the rest nothing is asked
	puts            int
	err             error
}

func (c *counted) Put(context.Context, tandem.Ticket) error          { c.puts++; return c.err }
func (c *counted) Submit(ctx context.Context, t tandem.Ticket) error { return c.Put(ctx, t) }

// TestTwoWays: a ticket goes through the pool, and past it while it is away.
func TestTwoWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the detours take as long as the clock says, however busy the machine is
		first, second, up := new(counted), new(counted), true
		counters := new(tandem.Counters)
		r := New(Config{Verifier: second, Pool: first, PoolUp: func() bool { return up }, Counters: counters})
		put := func(wantFirst, wantSecond int, want error) {
			t.Helper()
			first.puts, second.puts = 0, 0
			if err := r.Submit(context.Background(), tandem.Ticket{}); !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Errorf("put: %v: want %v", err, want)
			}
			if first.puts != wantFirst || second.puts != wantSecond {
				t.Errorf("%d and %d tickets: want %d and %d", first.puts, second.puts, wantFirst, wantSecond)
			}
		}
		put(1, 0, nil)
		first.err = tandem.Errorf(op, tandem.Exhausted, "full")
		put(1, 0, tandem.Exhausted) // a full pool is no reason to go past it
		first.err = tandem.Errorf(op, tandem.Unavailable, "gone")
		put(1, 1, nil)
		put(0, 1, nil) // not asked again at once
		if r.poolUp() {
			t.Error("the pool counts as up")
		}
		second.err = tandem.Errorf(op, tandem.Exhausted, "full")
		put(0, 1, tandem.Exhausted)
		second.err = nil
		testkit.Sleep(firstDetour + 10*time.Millisecond)
		put(1, 1, nil) // asked again, and away for longer
		if r.detour != 2*firstDetour {
			t.Errorf("the next detour takes %v: want %v", r.detour, 2*firstDetour)
		}
		testkit.Sleep(2*firstDetour + 10*time.Millisecond)
		first.err = nil
		put(1, 0, nil)
		put(1, 0, nil)
		up = false
		put(0, 1, nil) // known to be away: not even asked
		if n := counters.Snapshot()["tickets.direct"]; n != 4 {
			t.Errorf("%d tickets counted as direct: want 4", n)
		}
	})
}

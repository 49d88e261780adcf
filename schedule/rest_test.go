package schedule

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// measuring is a Resting whose passes take 100 ms.
type measuring struct {
	passes, roused int
	again          time.Duration
	fails          bool
}

func (m *measuring) Rest() time.Duration {
	testkit.Sleep(100 * time.Millisecond)
	if m.fails {
		panic("a pass")
	}
	m.passes++
	return m.again
}

func (m *measuring) Rouse() { m.roused++ }

// TestRest: a schedule without sessions rests after a while, one pass after the other. Who comes waits for one of them at most, and has all
// of the model then.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work := &measuring{}
		b := newBench(t, func(c *Config) { c.Resting = work })
		b.Start()
		defer func() {
			if err := b.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		has := func(what string, passes, roused int) {
			t.Helper()
			synctest.Wait()
			var p, r int
			if err := b.Do(t.Context(), func() error { p, r = work.passes, work.roused; return nil }); err != nil {
				t.Fatal(err)
			}
			if p != passes || r != roused {
				t.Errorf("%s: %d passes, roused %d times: want %d and %d", what, p, r, passes, roused)
			}
		}
		b.Post(func() {}) // a call that opens nothing
		testkit.Sleep(RestAfter - time.Millisecond)
		has("at first", 0, 0)
		testkit.Sleep(RestAfter/2 + time.Millisecond)
		begun := time.Now()
		_, err := b.Open(t.Context(), tandem.Opening{Session: 1}, func() (Session, error) {
			if work.passes < 5 || work.passes > 6 || work.roused != 1 {
				t.Errorf("%d passes, roused %d times before a session comes: want 5 or 6, once", work.passes, work.roused)
			}
			return b.player(1, 0), nil
		})
		if waited := time.Since(begun); err != nil || waited > 100*time.Millisecond {
			t.Errorf("opened after %v, %v: want one pass at most", waited, err)
		}
		passes := work.passes
		testkit.Sleep(10 * RestAfter)
		has("while there is a session", passes, 1)
		if err := b.Do(t.Context(), func() error { work.again = 5 * time.Second; b.Close(1); return nil }); err != nil {
			t.Fatal(err)
		}
		testkit.Sleep(RestAfter / 2)
		has("just after it", passes, 1)
		testkit.Sleep(4 * time.Second)
		has("once, as it has no more to do", passes+1, 1)
		testkit.Sleep(3 * time.Second)
		if err := b.Do(t.Context(), func() error { work.again = -1; return nil }); err != nil {
			t.Fatal(err)
		}
		testkit.Sleep(3 * time.Second)
		has("after some time again", passes+2, 1)
		testkit.Sleep(10 * time.Second)
		has("and later never", passes+3, 2)
	})
}

// TestRestPanics: a panic there is the last call, and sessions go on.
func TestRestPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work := &measuring{fails: true}
		b := newBench(t, func(c *Config) { c.Resting = work })
		b.Start()
		testkit.Sleep(3 * RestAfter)
		if _, err := b.Open(t.Context(), tandem.Opening{Session: 1}, func() (Session, error) { return b.player(1, 0), nil }); err != nil {
			t.Error(err)
		}
		if n := b.cfg.Counters.Snapshot()["faults"]; n != 1 || work.roused != 0 {
			t.Errorf("%d faults, roused %d times: want 1, and nobody called again", n, work.roused)
		}
		if err := b.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

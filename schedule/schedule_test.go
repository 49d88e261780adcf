package schedule

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/spec/worth"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestStumbles: a session that panics anywhere, or wants too much or nothing, is dropped, and no other. Nobody finds what
// it computed.
func TestStumbles(t *testing.T) {
	for _, where := range []string{
		"missing", "want", "greed", "nothing", "take", "settle", "settle badly", "spare", "opened", "resume", "follows",
	} {
		t.Run(where, func(t *testing.T) {
			b := newBench(t, nil)
			bad, good, idle := b.opened(1), b.opened(2), b.opened(3)
			shares := &text{trusted: true}
			bad.shares = shares
			bad.stumble = where
			var call *Call
			switch where {
			case "nothing":
				bad.whole = true
				call = b.queue(bad, passRows+1)
			case "spare":
				b.Spare(bad)
				good.ahead = 5
				b.Spare(good)
				if rows := b.step(good); rows[0] != 4 {
					t.Errorf("%d rows of the other's to spare", rows[0])
				}
			case "opened", "resume", "follows":
				b.Drop(bad, nil)
				bad = b.player(1, 10)
				bad.shares, bad.stumble = shares, where
				other := b.player(4, 10)
				other.shares = shares
				call = NewCall(context.Background())
				b.Enter(bad, call)
				b.Enter(other, NewCall(context.Background()))
				defer func() {
					if other.gone || other.Opening() {
						t.Error("the one that shares its prompt did not get in")
					}
				}()
			default:
				call = b.queue(bad, 4)
			}
			ended := b.queue(good, 4)
			for range 4 {
				b.Step()
			}
			if call != nil {
				if where == "settle" || where == "settle badly" { // it has answered by then
					if err := call.Wait(); err != nil {
						t.Error(err)
					}
				} else if err := call.Wait(); !errors.Is(err, tandem.Internal) {
					t.Errorf("it ended with %v, want Internal", err)
				}
			}
			if err := ended.Wait(); err != nil {
				t.Errorf("the other: %v", err)
			}
			if b.Holds(bad) || !bad.closed || !errors.Is(bad.left, tandem.Internal) || shares.trusted {
				t.Errorf("held %v, closed %v, left with %v, trusted %v", b.Holds(bad), bad.closed, bad.left, shares.trusted)
			}
			if !b.Holds(good) || !b.Holds(idle) || b.counter("faults") != 1 {
				t.Errorf("others held: %v, %v; %d faults", b.Holds(good), b.Holds(idle), b.counter("faults"))
			}
		})
	}
}

// TestPasses that fail: a refused pass is tried again with each part alone; a panic drops the sessions of the pass.
func TestPassesThatFail(t *testing.T) {
	has := func(batch []engine.Part, id tandem.Token) bool {
		for _, g := range batch {
			if len(g.Nodes) > 0 && g.Nodes[0] == id {
				return true
			}
		}
		return false
	}
	for _, c := range []struct {
		name string
		meet func(batch []engine.Part) error
		lost []bool
	}{
		{"one part is refused", func(batch []engine.Part) error {
			if has(batch, 2) {
				return tandem.Errorf("engine", tandem.Invalid, "no such token")
			}
			return nil
		}, []bool{false, true, false, false}},
		{"the device is lost", func([]engine.Part) error { return tandem.Errorf("engine", tandem.Unavailable, "no disk") },
			[]bool{true, true, true, false}},
		{"it panics", func(batch []engine.Part) error { panic("the model") }, []bool{true, true, true, false}},
		{"one part alone panics", func(batch []engine.Part) error {
			if len(batch) > 1 {
				return tandem.Errorf("engine", tandem.Internal, "a pass failed")
			}
			if has(batch, 2) {
				panic("the model")
			}
			return nil
		}, []bool{false, true, false, false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			noLeaks(t)
			b, kind := newBench(t, nil), tandem.Internal
			if c.name == "the device is lost" {
				kind = tandem.Unavailable
			}
			var all []*player
			var calls []*Call
			for id := range tandem.SessionID(4) {
				p := b.opened(id + 1)
				all = append(all, p)
				if id < 3 {
					calls = append(calls, b.queue(p, 4))
				}
			}
			b.model.meets = c.meet
			b.started()
			for i, call := range calls {
				if err := call.Wait(); errors.Is(err, kind) != c.lost[i] || (err != nil) != c.lost[i] {
					t.Errorf("session %d: %v, to be lost %v", i+1, err, c.lost[i])
				}
			}
			err := b.Do(context.Background(), func() error {
				for i, p := range all {
					if b.Holds(p) == c.lost[i] {
						t.Errorf("session %d is held: %v", i+1, b.Holds(p))
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPostedPanics: a panic in a posted function, or in Left, is counted and has no other effect.
func TestPostedPanics(t *testing.T) {
	noLeaks(t)
	b := newBench(t, nil)
	p := b.opened(1)
	p.stumble = "left"
	b.opened(2)
	b.started()
	b.Post(func() { panic("posted") })
	b.Post(func() { b.Close(1) })
	err := b.Do(context.Background(), func() error {
		if b.counter("faults") != 2 || !p.closed || b.Load().Sessions != 1 {
			t.Errorf("%d faults, closed %v, %+v", b.counter("faults"), p.closed, b.Load())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.Chunk = 8 })
		b.model.costs = worth.NewCosts(flat) // 10 ms a pass
		b.started()
		long, short, queued := b.player(1, 1000), b.player(2, 8), b.player(3, 0)
		if _, err := b.enters(t.Context(), queued); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 95*time.Millisecond)
		defer cancel()
		begun := time.Now()
		_, err := b.enters(ctx, long)
		if took := time.Since(begun); !errors.Is(err, tandem.Deadline) || took > 96*time.Millisecond {
			t.Errorf("%v after %v: want Deadline at once", err, took)
		}
		testkit.Sleep(11 * time.Millisecond) // the pass that runs
		synctest.Wait()
		if !long.closed || !errors.Is(long.left, tandem.Deadline) || long.held != 80 {
			t.Errorf("given up with %d rows: closed %v, %v", long.held, long.closed, long.left)
		}
		if _, err := b.enters(t.Context(), short); err != nil {
			t.Error(err)
		}
		later, cancelLater := context.WithCancel(t.Context())
		call := NewCall(later)
		b.Post(func() {
			queued.tree = 1000
			b.Queue(queued, call, time.Now(), 8)
		})
		testkit.Sleep(150 * time.Millisecond)
		cancelLater()
		if err := call.Wait(); !errors.Is(err, tandem.Canceled) {
			t.Errorf("got %v, want Canceled", err)
		}
		testkit.Sleep(time.Second)
		synctest.Wait()
		n := len(queued.turns)
		testkit.Sleep(time.Second)
		synctest.Wait()
		if queued.gone || queued.Busy() || len(queued.turns) != n {
			t.Errorf("what was given up goes on, or cost the session: gone %v, busy %v", queued.gone, queued.Busy())
		}
	})
}

// TestFound: what an Open says it has found is what there was at its begin, however soon its passes end.
func TestFound(t *testing.T) {
	noLeaks(t)
	b := newBench(t, nil)
	b.started()
	for i := range 2000 {
		p := b.player(tandem.SessionID(i+1), 10)
		p.held = 3
		opened, err := b.enters(t.Context(), p)
		if err != nil || opened.Cached != 3 || p.held != 10 {
			t.Fatalf("Open %d: found %d, holds %d, %v: want 3 and 10", i, opened.Cached, p.held, err)
		}
		b.Post(func() { b.Close(p.ID) })
	}
}

func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.Idle, c.Chunk = time.Minute, 1 })
		b.model.costs = worth.NewCosts([]tandem.Cost{{Rows: 1, Time: time.Second}})
		b.started()
		idle, asked, opening := b.player(1, 0), b.player(2, 0), b.player(3, 200) // 200 s
		for _, p := range []*player{idle, asked} {
			if _, err := b.enters(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		go func() { _, _ = b.enters(t.Context(), opening) }()
		for range 5 {
			testkit.Sleep(30 * time.Second)
			b.Post(func() { b.queue(asked, 4) })
		}
		synctest.Wait()
		if !idle.closed || idle.left != nil || asked.gone || opening.gone || b.counter("sessions.idle") != 1 {
			t.Errorf("gone: %v, %v, %v; %d dropped", idle.gone, asked.gone, opening.gone, b.counter("sessions.idle"))
		}
		testkit.Sleep(4 * time.Minute)
		synctest.Wait()
		if !asked.closed || !opening.closed || b.counter("sessions.idle") != 3 {
			t.Errorf("gone: %v, %v; %d dropped", asked.gone, opening.gone, b.counter("sessions.idle"))
		}
	})
}

// TestOwners: when a process is gone its sessions are dropped and all waits for them end; other sessions stay. The same holds for a
// session that is closed, and for all when the schedule stops.
func TestOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := 0
		b := newBench(t, func(c *Config) { c.Chunk, c.Last = 1, func() { ends++ } })
		b.model.costs = worth.NewCosts(flat)
		b.started()
		var all []*player
		ended := make([]error, 5)
		for i := range ended {
			p := b.player(tandem.SessionID(i+1), 1000)
			p.Owner = uint64(1 + i/2)
			all = append(all, p)
			go func() { _, ended[i] = b.enters(t.Context(), p) }()
		}
		testkit.Sleep(time.Second)
		err := b.Do(t.Context(), func() error {
			b.CloseOwned(1)
			b.Close(3)
			b.Close(77)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		synctest.Wait()
		for i, p := range all {
			if gone := i < 3; p.gone != gone || errors.Is(ended[i], tandem.UnknownSession) != gone || p.closed != gone {
				t.Errorf("session %v of owner %d: gone %v with %v", p.ID, p.Owner, p.gone, ended[i])
			}
		}
		if b.counter("sessions.orphaned") != 2 {
			t.Errorf("counters %v", b.cfg.Counters.Snapshot())
		}
		if err := b.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		for i, p := range all[3:] {
			if !p.closed || !errors.Is(ended[3+i], tandem.Unavailable) {
				t.Errorf("after the stop: session %v closed %v, %v", p.ID, p.closed, ended[3+i])
			}
		}
		if ends != 1 {
			t.Errorf("the end was told %d times", ends)
		}
		if _, err := b.enters(t.Context(), b.player(9, 0)); !errors.Is(err, tandem.Unavailable) {
			t.Errorf("opened after the stop: %v, want Unavailable", err)
		}
	})
}

// TestReplace: a session is opened again by a later epoch or the same one, never by an older one.
func TestReplace(t *testing.T) {
	b := newBench(t, nil)
	p := b.player(1, 10)
	p.Epoch = 3
	b.model.evicted = 7
	call := NewCall(context.Background())
	b.Enter(p, call)
	if err := b.Replace(tandem.Opening{Session: 1, Epoch: 2}); !errors.Is(err, tandem.Stale) || p.gone {
		t.Errorf("an older epoch: %v", err)
	}
	for _, o := range []tandem.Opening{{Session: 2, Epoch: 1}, {Session: 1, Epoch: 3}} {
		if err := b.Replace(o); err != nil {
			t.Error(err)
		}
	}
	if !p.closed {
		t.Error("the older one is still there")
	}
	if err := call.Wait(); !errors.Is(err, tandem.Stale) || !strings.Contains(err.Error(), "opened again") {
		t.Errorf("the first call: %v", err)
	}
	if b.counter("prefix.evicted_pages") != 7 {
		t.Errorf("counters %v", b.cfg.Counters.Snapshot())
	}
}

// TestQueuedBeforeOpen: work that comes before a session's prompt is in waits for the prompt.
func TestQueuedBeforeOpen(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Chunk = 5 })
	p := b.player(1, 12)
	opened := NewCall(context.Background())
	b.Enter(p, opened)
	asked := b.queue(p, 4)
	for range 4 {
		b.Step()
	}
	if err := errors.Join(opened.Wait(), asked.Wait()); err != nil {
		t.Error(err)
	}
	if !slices.Equal(p.turns, []int{5, 5, 2, 4}) || b.Load() != (Load{Sessions: 1}) {
		t.Errorf("parts of %v rows, %+v", p.turns, b.Load())
	}
}

// TestSpare: work that nobody waits for is done a little at a time, by turns, and only while nobody waits.
func TestSpare(t *testing.T) {
	b := newBench(t, nil)
	one, two, three, busy := b.opened(1), b.opened(2), b.opened(3), b.opened(4)
	for _, p := range []*player{one, two, three} {
		p.ahead = 8
		b.Spare(p)
	}
	b.queue(busy, 4)
	for i, want := range [][4]int{{0, 0, 0, 4}, {4, 4, 0, 0}, {4, 0, 4, 0}} {
		if rows := b.step(one, two, three, busy); [4]int(rows) != want {
			t.Errorf("pass %d: %v, want %v", i, rows, want)
		}
	}
	b.Rest(two)
	for range 3 {
		b.Step()
	}
	if one.ahead != 0 || two.ahead != 4 || three.ahead != 0 || b.Load().Spare != 0 {
		t.Errorf("left: %d, %d of one that rests, %d; %+v", one.ahead, two.ahead, three.ahead, b.Load())
	}
}

// TestGivenUp: a caller that gives up learns the kind of error by that, whether the schedule or the caller's context is first.
func TestGivenUp(t *testing.T) {
	for range 50 { // which of the two is first is chance
		ctx, cancel := context.WithTimeout(context.Background(), 0)
		call := NewCall(ctx)
		<-ctx.Done()
		call.End(call.GivenUp())
		if err := call.Wait(); !errors.Is(err, tandem.Deadline) {
			t.Fatalf("%v: want Deadline", err)
		}
		cancel()
	}
	if err := NewCall(context.Background()).GivenUp(); err != nil {
		t.Error(err)
	}
}

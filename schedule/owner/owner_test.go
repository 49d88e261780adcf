package owner

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

func start(t *testing.T, w Work) *Owner {
	if w.Tick == nil {
		w.Tick, w.Every = func() {}, time.Hour
	}
	o := New(w)
	o.Start()
	t.Cleanup(func() {
		if err := o.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		goleak.VerifyNone(t)
	})
	return o
}

func TestDoReturnsWhatHappened(t *testing.T) {
	o := start(t, Work{})
	ctx := context.Background()
	mine := tandem.Errorf("test", tandem.Stale, "mine")
	if err := o.Do(ctx, func() error { return mine }); !errors.Is(err, mine) {
		t.Errorf("got %v", err)
	}
	err := o.Do(ctx, func() error { panic("fn") })
	if !errors.Is(err, tandem.Internal) || !strings.Contains(tandem.StackOf(err), "TestDoReturnsWhatHappened") ||
		strings.Contains(err.Error(), "goroutine") {
		t.Errorf("panic came back as %v, want Internal with a stack", err)
	}
	if err := o.Do(ctx, func() error { return nil }); err != nil {
		t.Errorf("after a panic: %v", err)
	}
}

func TestCancelWhileQueued(t *testing.T) {
	o := start(t, Work{})
	hold := make(chan struct{})
	o.Post(func() { <-hold })
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	ran := false
	if err := o.Do(ctx, func() error { ran = true; return nil }); !errors.Is(err, tandem.Deadline) {
		t.Errorf("got %v, want Deadline", err)
	}
	stop, cancelStop := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancelStop()
	if err := o.Stop(stop); !errors.Is(err, tandem.Deadline) {
		t.Errorf("Stop during a function: %v, want Deadline", err)
	}
	close(hold)
	if err := o.Stop(context.Background()); err != nil || ran {
		t.Errorf("stopped with %v, abandoned function ran: %v", err, ran)
	}
	if err := o.Do(context.Background(), func() error { return nil }); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("after Stop: %v, want Unavailable", err)
	}
}

func TestStepsTicksAndFaults(t *testing.T) {
	var steps, ticks, faults int
	last := make(chan struct{})
	ticked := make(chan struct{})
	o := start(t, Work{
		Step:  func() bool { steps++; return steps < 5 },
		Fault: func(err error) { faults++ },
		Tick: func() {
			if ticks++; ticks == 2 {
				close(ticked)
			}
			panic("tick")
		},
		Every: time.Millisecond,
		Last:  func() { close(last) },
	})
	select {
	case <-ticked:
	case <-time.After(30 * time.Second):
		t.Fatal("no ticks")
	}
	if err := o.Do(context.Background(), func() error { return nil }); err != nil {
		t.Error(err)
	}
	if err := o.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	<-last
	if steps < 5 || faults != ticks {
		t.Errorf("%d steps, %d ticks, %d faults", steps, ticks, faults)
	}
}

// count is a Pulse that counts.
type count struct{ finished atomic.Int64 }

func (c *count) Finished()                 { c.finished.Add(1) }
func (c *count) Expect(int, time.Duration) {}

func TestPulse(t *testing.T) { synctest.Test(t, pulse) }

func pulse(t *testing.T) {
	var c count
	o := New(Work{Pulse: &c, Tick: func() {}, Every: time.Hour})
	o.Start()
	defer func() {
		if err := o.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if err := o.Do(context.Background(), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	hold, held := make(chan struct{}), make(chan struct{})
	o.Post(func() { close(held); <-hold })
	<-held
	before := c.finished.Load()
	if before == 0 {
		t.Error("a function has ended, and nothing shows it")
	}
	testkit.Sleep(1500 * time.Millisecond)
	if now := c.finished.Load(); now != before {
		t.Errorf("%d operations finished while one hung", now-before)
	}
	close(hold)
	if testkit.Sleep(30 * time.Second); c.finished.Load() < before+3 {
		t.Error("an idle owner shows nothing")
	}
}

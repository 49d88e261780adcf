package httpapi

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestMonitor follows an engine through its life: never healthy when no pass ends, never busier with probes than it must.
func TestMonitor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes atomic.Int32
		var dead, muted atomic.Bool
		m := NewMonitor(script(func(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
			if r.MaxTokens == 1 {
				probes.Add(1)
				if ctx.Value(mutedKey{}) != nil {
					muted.Store(true)
				}
			}
			if dead.Load() {
				<-ctx.Done()
				return tandem.Result{}, tandem.Errorf("generate", tandem.Deadline, "no verdict")
			}
			return hello(ctx, r, s)
		}), func(ctx context.Context) context.Context { return context.WithValue(ctx, mutedKey{}, true) }, nil)
		ask := func(want bool, says string, asked int32) {
			t.Helper()
			h := m.Health(t.Context())
			if h.Ready != want || !strings.Contains(h.Reason, says) || probes.Load() != asked {
				t.Errorf("%+v after %d probes, want %v, %q, %d", h, probes.Load(), want, says, asked)
			}
		}
		ask(false, "loading", 0)
		m.VerifierRefused("it speaks protocol 2")
		ask(false, "loading: it speaks protocol 2", 0)
		m.VerifierState(true)
		ask(true, "", 1) // no pass yet: a probe
		if !muted.Load() {
			t.Error("probes are traced")
		}
		testkit.Sleep(4 * time.Second)
		ask(true, "", 1) // the probe's own pass is young enough
		testkit.Sleep(2 * time.Second)
		if _, err := m.Generate(t.Context(), tandem.Request{Prompt: "a", MaxTokens: 2, Sampling: tandem.Sampling{TopP: 1}},
			discard{}); err != nil {
			t.Fatal(err)
		}
		ask(true, "", 1) // a request's pass
		dead.Store(true)
		testkit.Sleep(6 * time.Second)
		var wg sync.WaitGroup
		for range 8 { // all wait for one probe, not for long
			wg.Go(func() {
				begun := time.Now()
				if h := m.Health(t.Context()); !h.Ready || time.Since(begun) > healthTime {
					t.Errorf("while a probe is under way it is %+v after %v, want what it was before", h, time.Since(begun))
				}
			})
		}
		wg.Wait()
		testkit.Sleep(5 * time.Second)
		ask(false, "no verdict", 2)
		ask(false, "no verify pass for 5s", 2) // what failed just now is not tried again at once
		testkit.Sleep(2 * time.Second)
		ask(false, "not passed yet", 3)
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if h := m.Health(short); h.Ready || !strings.Contains(h.Reason, "not passed yet") {
			t.Errorf("who does not wait is told %+v", h)
		}
		dead.Store(false)
		testkit.Sleep(7 * time.Second)
		ask(true, "", 4)
		m.VerifierState(false)
		ask(false, "down", 4)
		m.VerifierRefused("it speaks protocol 2")
		ask(false, "it speaks protocol 2", 4)
		m.VerifierState(true)
		ask(true, "", 5) // passes of the verifier before prove nothing
	})
}

type mutedKey struct{}

// TestHealthUnderFullPrefill takes all places with prompts so long that for minutes nobody gets a token, the probe neither: it is
// ready all the time, and says so at once, until passes end no more.
func TestHealthUnderFullPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var passes atomic.Int64
		var stuck, silent atomic.Bool
		full := script(func(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
			<-ctx.Done()
			return tandem.Result{}, tandem.Errorf("generate", tandem.Deadline, "no place")
		})
		m := NewMonitor(full, nil, func(ctx context.Context) (int64, error) {
			if silent.Load() {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return passes.Load(), nil
		})
		m.VerifierState(true)
		over := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(1300 * time.Millisecond):
					if !stuck.Load() {
						passes.Add(1)
					}
				}
			}
		})
		asked := func() Health {
			begun := time.Now()
			h := m.Health(t.Context())
			if took := time.Since(begun); took > healthTime+lookTime {
				t.Errorf("an answer took %v", took)
			}
			return h
		}
		asked() // there is nothing to compare with yet
		for i := range 40 {
			testkit.Sleep(time.Duration(2+i%9) * time.Second)
			if h := asked(); !h.Ready {
				t.Errorf("question %d: %+v", i, h)
			}
		}
		stuck.Store(true)
		testkit.Sleep(5 * time.Second)
		asked() // it may have ended one since
		asked()
		testkit.Sleep(6 * time.Second)
		for range 5 {
			if h := asked(); h.Ready {
				t.Errorf("an engine that ends no pass is %+v", h)
			}
			testkit.Sleep(3 * time.Second)
		}
		silent.Store(true)
		if h := asked(); h.Ready {
			t.Errorf("an engine that does not even count is %+v", h)
		}
		stuck.Store(false)
		silent.Store(false)
		testkit.Sleep(5 * time.Second)
		if h := asked(); !h.Ready {
			t.Errorf("one that goes on is %+v", h)
		}
		close(over)
		wg.Wait()
		testkit.Sleep(probeTime) // the last probe
	})
}

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
		}), func(ctx context.Context) context.Context { return context.WithValue(ctx, mutedKey{}, true) })
		ask := func(want bool, says string, asked int32) {
			t.Helper()
			h := m.Health(t.Context())
			if h.Ready != want || !strings.Contains(h.Reason, says) || probes.Load() != asked {
				t.Errorf("%+v after %d probes, want %v, %q, %d", h, probes.Load(), want, says, asked)
			}
		}
		ask(false, "loading", 0)
		m.VerifierState(true)
		ask(true, "", 1) // no pass yet: a probe
		if !muted.Load() {
			t.Error("probes are traced")
		}
		time.Sleep(4 * time.Second)
		ask(true, "", 1) // the probe's own pass is young enough
		time.Sleep(2 * time.Second)
		if _, err := m.Generate(t.Context(), tandem.Request{Prompt: "a", MaxTokens: 2, Sampling: tandem.Sampling{TopP: 1}}, discard{}); err != nil {
			t.Fatal(err)
		}
		ask(true, "", 1) // a request's pass
		dead.Store(true)
		time.Sleep(6 * time.Second)
		var wg sync.WaitGroup
		for range 8 { // all wait for one probe
			wg.Go(func() {
				if h := m.Health(t.Context()); h.Ready || !strings.Contains(h.Reason, "no verdict") {
					t.Errorf("a dead engine is %+v", h)
				}
			})
		}
		wg.Wait()
		ask(false, "no verify pass for 5s", 2) // what failed just now is not tried again at once
		time.Sleep(2 * time.Second)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if h := m.Health(short); h.Ready || !strings.Contains(h.Reason, "not passed yet") {
			t.Errorf("who does not wait is told %+v", h)
		}
		dead.Store(false)
		time.Sleep(7 * time.Second)
		ask(true, "", 4)
		m.VerifierState(false)
		ask(false, "down", 4)
		m.VerifierState(true)
		ask(true, "", 5) // passes of the verifier before prove nothing
	})
}

type mutedKey struct{}

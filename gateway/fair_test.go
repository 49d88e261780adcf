package gateway

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestGreedyTenantHarmsNobody: a tenant has a thousand requests running and waiting; each of another's begins
// with the next place that becomes free, and none is refused.
func TestGreedyTenantHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		c := w.config()
		c.Sessions, c.Queue = 4, 32
		w.gw, _ = New(c)
		ctx, stop := context.WithCancel(context.Background())
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				for seed := uint64(i); ctx.Err() == nil; seed++ {
					r := tandem.Request{Prompt: "all mine", Tenant: "greedy", MaxTokens: 20, Sampling: tandem.Sampling{TopP: 1, Seed: seed}}
					_, err := w.gw.Generate(ctx, r, &sink{})
					if kind := tandem.KindOf(err); kind == tandem.Exhausted {
						testkit.Sleep(100 * time.Millisecond)
					} else if err != nil && kind != tandem.Canceled {
						t.Error(err)
					}
				}
			})
		}
		testkit.Sleep(time.Second)
		// A request takes 150 ms; of four places one becomes free long before that.
		const most = 200 * time.Millisecond
		for i := range 20 {
			asked := time.Now()
			var began time.Duration
			s := &sink{each: func(tandem.Delta) {
				if began == 0 {
					began = time.Since(asked)
				}
			}}
			r := tandem.Request{Prompt: "please", Tenant: "modest", MaxTokens: 2, Sampling: tandem.Sampling{TopP: 1}}
			if _, err := w.gw.Generate(ctx, r, s); err != nil || began > most {
				t.Errorf("request %d of the modest tenant began after %v: %v: want at most %v", i, began, err, most)
			}
		}
		stop()
		all.Wait()
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

// TestGreedyTenantsLongRequests: a tenant has all places with long answers, and more waiting. Each request of another tenant has its first
// tokens within two seconds; then the long ones go on, and none loses a token.
func TestGreedyTenantsLongRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		c := w.config()
		c.Sessions, c.Queue = 4, 32
		w.gw, _ = New(c)
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				r := tandem.Request{Prompt: "all mine", Tenant: "greedy", MaxTokens: 4000,
					Sampling: tandem.Sampling{TopP: 1, Seed: uint64(i)},
					Bounds:   tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}}
				s := &sink{}
				_, err := w.gw.Generate(context.Background(), r, s)
				if want, text, _ := w.plain(r, 4096); err != nil || !slices.Equal(s.tokens, want) || s.text != text {
					t.Errorf("long request %d: %v, %d tokens, text as plain: %v", i, err, len(s.tokens), s.text == text)
				}
			})
		}
		testkit.Sleep(3 * time.Second)
		const asked = 8
		for i := range asked {
			begun := time.Now()
			var first time.Duration
			s := &sink{each: func(tandem.Delta) {
				if first == 0 {
					first = time.Since(begun)
				}
			}}
			r := tandem.Request{Prompt: "please", Tenant: "modest", MaxTokens: 60, Sampling: tandem.Sampling{TopP: 1, Seed: uint64(i)}}
			if _, err := w.gw.Generate(context.Background(), r, s); err != nil || first > 2*time.Second {
				t.Errorf("request %d of the modest tenant began after %v: %v: want at most 2s", i, first, err)
			}
			testkit.Sleep(time.Duration(i) * 300 * time.Millisecond)
		}
		if n := c.Counters.Snapshot()["sessions.stepped_aside"]; n == 0 || n > asked {
			t.Errorf("%d requests were parked for %d small ones", n, asked)
		}
		all.Wait()
		if p := unsettled(w.gw); p != "" {
			t.Error(p)
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
		if len(w.violations) > 0 || w.held() > 0 {
			t.Errorf("contracts broken: %q; %d sessions left", w.violations, w.held())
		}
	})
}

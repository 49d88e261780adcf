package gateway

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
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
						time.Sleep(100 * time.Millisecond)
					} else if err != nil && kind != tandem.Canceled {
						t.Error(err)
					}
				}
			})
		}
		time.Sleep(time.Second)
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

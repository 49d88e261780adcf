package gateway

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// TestStandings follows three requests through a verifier that takes all tickets there are as soon as it is free.
func TestStandings(t *testing.T) {
	counters := new(tandem.Counters)
	s := newStandings(counters)
	a, b, c := s.enter(), s.enter(), s.enter()
	for i, step := range []struct {
		x    *standing
		e    spec.RequestEvent
		want string // pending drafted verifying running illegal
	}{
		{a, spec.RequestPut, "2 0 1 0 0"},      // the verifier is idle
		{b, spec.RequestPut, "1 1 1 0 0"},      // it is not any more
		{b, spec.RequestPut, "1 1 1 0 0"},      // again: the first may be lost
		{c, spec.RequestPut, "0 2 1 0 0"},      //
		{a, spec.RequestVerdict, "0 0 2 1 0"},  // it takes both
		{a, spec.RequestPut, "0 1 2 0 0"},      //
		{b, spec.RequestVerdict, "0 1 1 1 0"},  // c is still in that pass
		{a, spec.RequestVerdict, "0 0 1 2 0"},  // so a was too
		{c, spec.RequestReopened, "1 0 0 2 0"}, //
		{b, spec.RequestVerdict, "1 0 0 2 0"},  // of a ticket that its drafter put without being heard
		{c, spec.RequestTaken, "1 0 0 2 1"},    // cannot be
		{a, spec.RequestEnded, "1 0 0 1 1"},    //
		{a, spec.RequestPut, "1 0 0 1 2"},      // nor this
		{a, spec.RequestVerdict, "1 0 0 1 3"},  //
		{b, spec.RequestEnded, "1 0 0 0 3"},    //
		{c, spec.RequestEnded, "0 0 0 0 3"},    //
	} {
		s.tell(step.x, step.e)
		n := counters.Snapshot()
		if got := fmt.Sprint(n["sessions.pending"], n["sessions.drafted"], n["sessions.verifying"], n["sessions.running"],
			n["sessions.illegal"]); got != step.want {
			t.Errorf("step %d, %v: %s: want %s", i, step.e, got, step.want)
		}
	}
	if len(s.live) > 0 {
		t.Errorf("%d requests live on", len(s.live))
	}
}

// TestStatesOfRequests looks at the counters while requests run: a proposal takes 3 ms, a ticket 1 ms on its way, a
// pass 5 ms.
func TestStatesOfRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		c := w.config()
		w.gw, _ = New(c)
		var group sync.WaitGroup
		for i := range 2 {
			group.Go(func() {
				time.Sleep(time.Duration(i) * 2 * time.Millisecond)
				r := tandem.Request{Prompt: "func", MaxTokens: 20, Sampling: tandem.Sampling{TopP: 1},
					Bounds: tandem.Bounds{Nodes: 5, Depth: 4, Width: 1}}
				if _, err := w.gw.Generate(context.Background(), r, &sink{}); err != nil {
					t.Error(err)
				}
			})
		}
		var seen []string
		for _, at := range []time.Duration{5, 12, 14, 16, 20, 21} { // ms
			time.Sleep(at*time.Millisecond + 500*time.Microsecond - time.Since(w.began))
			synctest.Wait()
			n := c.Counters.Snapshot()
			seen = append(seen, fmt.Sprint(n["sessions.pending"], n["sessions.drafted"], n["sessions.verifying"], n["sessions.running"]))
		}
		// Both prefill; both draft; the first is verified; the second waits; it is verified while the first drafts.
		if got, want := strings.Join(seen, ", "), "2 0 0 0, 2 0 0 0, 1 0 1 0, 0 1 1 0, 0 0 1 1, 0 0 0 2"; got != want {
			t.Errorf("pending, drafted, verifying, running: %s: want %s", got, want)
		}
		group.Wait()
		if p := unsettled(c.Counters); p != "" {
			t.Error(p)
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

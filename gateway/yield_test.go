package gateway

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestMemoryThatRunsOut: requests that fit into the verifier's memory when they begin grow beyond it. Those for which there is no room wait
// until others have ended; each says the text of plain decoding, and none is opened again and again.
func TestMemoryThatRunsOut(t *testing.T) {
	for name, known := range map[string]bool{"the gate knows the size": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runOut(t, known) })
		})
	}
}

func runOut(t *testing.T, known bool) {
	const requests, tokens, memory = 12, 900, 2048 // two whole ones fit
	w := newWorld()
	w.quiet, w.memory = true, memory
	c := w.config()
	c.Sessions, c.Queue = 8, requests
	w.gw, _ = New(c)
	if known {
		w.gw.VerifierIs(nil, memory, 16, memory)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	reopened := 0
	for i := range requests {
		all.Go(func() {
			testkit.Sleep(time.Duration(i) * 7 * time.Millisecond)
			r := tandem.Request{Prompt: fmt.Sprint("func ", i), MaxTokens: tokens, Sampling: tandem.Sampling{TopP: 1, Seed: uint64(i)},
				Bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}}
			s := &sink{}
			res, err := w.gw.Generate(context.Background(), r, s)
			want, text, _ := w.plain(r, 4096)
			if err != nil || !slices.Equal(s.tokens, want) || s.text != text {
				t.Errorf("request %d: %v, %d tokens, text as plain: %v", i, err, len(s.tokens), s.text == text)
			}
			mu.Lock()
			defer mu.Unlock()
			reopened += res.Stats.Reopened
		})
	}
	all.Wait()
	counts := c.Counters.Snapshot()
	t.Logf("opened again %d times in all, starved %d times, took %v", reopened, counts["sessions.starved"], time.Since(w.began))
	most := map[bool]int{true: 3 * requests, false: 10 * requests}[known]
	if counts["sessions.starved"] == 0 || reopened > most {
		t.Errorf("%d times there was no room, sessions were opened again %d times: want some, and at most %d", counts["sessions.starved"],
			reopened, most)
	}
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
}

// TestMemoryThatNeverFits: a request for which the verifier has no room even when it is alone ends with an error that says so, in bounded
// time; one beside it does not.
func TestMemoryThatNeverFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet, w.memory = true, 200
		c := w.config()
		w.gw, _ = New(c)
		var all sync.WaitGroup
		ask := func(tokens int) error {
			r := tandem.Request{Prompt: "func", MaxTokens: tokens, Sampling: tandem.Sampling{TopP: 1}}
			_, err := w.gw.Generate(context.Background(), r, &sink{})
			return err
		}
		all.Go(func() {
			if err := ask(500); tandem.KindOf(err) != tandem.Exhausted {
				t.Errorf("a request that never fits: %v: want exhausted", err)
			}
		})
		all.Go(func() {
			if err := ask(100); err != nil {
				t.Errorf("a request that fits, beside one that never does: %v", err)
			}
		})
		all.Wait()
		if took := time.Since(w.began); took > 2*c.Timeouts.VerifierWait {
			t.Errorf("it took %v to say that there is no room: want at most %v", took, 2*c.Timeouts.VerifierWait)
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

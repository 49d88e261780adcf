package verifier_test

import (
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/spec/worth"
	"github.com/tandem-llm/tandem/verifier"
)

var big = flag.String("big", "", "target of the benchmark of waits, such as the shipped one expanded to 1b")

// quietCosts are those of the shipped target, expanded to 1b, Q8_0, with 2 threads.
var quietCosts = []tandem.Cost{{Rows: 1, Time: 39e6}, {Rows: 2, Time: 39.6e6}, {Rows: 4, Time: 41e6}, {Rows: 8, Time: 43e6},
	{Rows: 12, Time: 54e6}, {Rows: 16, Time: 67e6}, {Rows: 24, Time: 96e6}, {Rows: 32, Time: 122e6}}

// TestWaitsMeasured compares how long a pass waits for more tickets: -big FILE, minutes.
func TestWaitsMeasured(t *testing.T) {
	if *big == "" {
		t.Skip("needs -big")
	}
	bounds := func(nodes, depth, width int) tandem.Bounds {
		return tandem.Bounds{Nodes: nodes, Depth: depth, Width: width}
	}
	for _, c := range []struct {
		sessions int
		bounds   tandem.Bounds
	}{{8, bounds(2, 1, 1)}, {8, bounds(4, 3, 2)}, {8, bounds(12, 6, 4)}, {2, bounds(8, 5, 4)}} {
		t.Run(fmt.Sprint(c.sessions, " ", c.bounds), func(t *testing.T) { measureWaits(t, c.sessions, c.bounds) })
	}
}

// measureWaits runs the sessions with and without waits in turn. Passes count with what they cost on a quiet
// machine, so that it matters little what else runs on this one.
func measureWaits(t *testing.T, sessions int, bounds tandem.Bounds) {
	const turns, tokens = 3, 24
	m := openThreads(t, *big, sessions+1, 2)
	costs, err := measure.Costs(t.Context(), m, time.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, rigOptions{sessions: sessions + 1, verifier: verifier.Config{Model: m, Costs: costs}})
	quiet := worth.NewCosts(quietCosts)
	type figures struct {
		wall, busy, quiet time.Duration
		tickets, passes   int64
	}
	var sums [2]figures
	for turn := range 2 * turns {
		sum := &sums[turn%2]
		if err := r.v.SetPatience(float64(turn % 2)); err != nil {
			t.Fatal(err)
		}
		before, begun := r.counters.Snapshot(), time.Now()
		var all sync.WaitGroup
		var mu sync.Mutex
		for n := range sessions {
			all.Go(func() {
				a := asked{prompt: m.Vocab().Encode(prompts[n%len(prompts)], true), bounds: bounds, tokens: tokens,
					sampling: tandem.Sampling{Temperature: 0.3, TopP: 1, Seed: uint64(n)},
					seen: func(v tandem.Verdict) {
						mu.Lock()
						defer mu.Unlock()
						sum.quiet += quiet.Time(v.Rows) / time.Duration(v.Batch)
					}}
				if _, err := r.generate(a); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		now := r.counters.Snapshot()
		sum.wall += time.Since(begun)
		sum.busy += time.Duration(now["passes.busy_us"]-before["passes.busy_us"]) * time.Microsecond
		sum.tickets += now["verdicts"] - before["verdicts"]
		sum.passes += now["passes"] - before["passes"]
	}
	for i, s := range sums {
		all := float64(turns * tokens * sessions)
		t.Logf("%s: %.1f tokens/s, %.1f by quiet costs; busy %.1f %%, %.1f tickets a pass", []string{"at once", "waiting"}[i],
			all/s.wall.Seconds(), all/(s.quiet+s.wall-s.busy).Seconds(), 100*s.busy.Seconds()/s.wall.Seconds(),
			float64(s.tickets)/float64(s.passes))
	}
}

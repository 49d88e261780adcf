package schedule

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
	"github.com/tandem-llm/tandem/test/testkit"
)

// box is a drafter and a verifier as schedules see them, in time that passes as costs say.
type box struct {
	draft, target   *bench
	draft1, target1 time.Duration // of a pass with one row
	patience        float64       // of the drafter
	sessions        int
	levels, width   int           // of a tree: passes of the drafter, rows in each
	jitter          time.Duration // mean of what keeps a session between its rounds
}

// costs are flat up to 8 rows and rise slowly from there.
func costs(one time.Duration) []tandem.Cost {
	return []tandem.Cost{{Rows: 1, Time: one}, {Rows: 8, Time: one}, {Rows: 32, Time: one * 3 / 2}, {Rows: 64, Time: 3 * one}}
}

// run decodes for that long and returns the rounds per second of all sessions together.
func (x box) run(t *testing.T, long time.Duration) (rate float64) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		start := func(one time.Duration, patience float64) *bench {
			b := newBench(t, func(c *Config) { c.Patience, c.Costs = patience, costs(one) })
			b.model.costs = worth.NewCosts(costs(one))
			return b.started()
		}
		x.draft, x.target = start(x.draft1, x.patience), start(x.target1, 1)
		rounds := make([]int, x.sessions)
		var all sync.WaitGroup
		for i := range rounds {
			all.Go(func() { rounds[i] = x.decode(ctx, i) })
		}
		all.Wait()
		for _, n := range rounds {
			rate += float64(n) / long.Seconds()
		}
	})
	return rate
}

// decode runs a session's rounds until ctx ends and returns how many.
func (x box) decode(ctx context.Context, i int) (rounds int) {
	rng := rand.New(rand.NewPCG(1, uint64(i)))
	d, v := x.draft.player(tandem.SessionID(i+1), 0), x.target.player(tandem.SessionID(i+1), 0)
	d.level, v.whole = x.width, true
	testkit.Sleep(time.Duration(rng.Int64N(int64(x.target1))))
	for _, p := range []*player{d, v} {
		if _, err := (&bench{Schedule: p.s}).enters(ctx, p); err != nil {
			return 0
		}
	}
	for nodes := x.levels * x.width; ; rounds++ {
		if x.ask(ctx, d, nodes) != nil || x.ask(ctx, v, nodes+1) != nil {
			return rounds
		}
		// gateway, wire, client
		testkit.Sleep(time.Duration(100+rng.IntN(300))*time.Microsecond + time.Duration(rng.ExpFloat64()*float64(x.jitter)))
	}
}

// ask has that many rows run for a session.
func (x box) ask(ctx context.Context, p *player, rows int) error {
	call, came := NewCall(ctx), time.Now()
	p.s.Post(func() {
		p.tree = rows
		p.s.Queue(p, call, came, cmp.Or(p.level, rows))
	})
	return call.Wait()
}

// TestDraftsWait: letting a drafter's passes wait for a proposal that is due pays while sessions move in step, as they do when their
// trees share the target's passes, and costs little if they come at random.
func TestDraftsWait(t *testing.T) {
	const target = 20 * time.Millisecond
	for _, jitter := range []time.Duration{0, 2 * time.Millisecond, 50 * time.Millisecond} {
		for _, share := range []int{20, 5} { // of the target's pass: a draft pass
			for _, sessions := range []int{2, 8} {
				for _, levels := range []int{1, 3} {
					x := box{sessions: sessions, levels: levels, width: 1, jitter: jitter, draft1: target / time.Duration(share),
						target1: target}
					atOnce := x.run(t, 20*time.Second)
					x.patience = 1
					waiting := x.run(t, 20*time.Second)
					gain := 100 * (waiting/atOnce - 1)
					t.Logf("jitter %v, draft pass 1/%d, %d sessions, %d passes a tree: %.1f rounds/s at once, %.1f waiting (%+.1f %%)",
						jitter, share, sessions, levels, atOnce, waiting, gain)
					if least := map[bool]float64{true: 1, false: -5}[jitter == 0]; gain < least {
						t.Errorf("waiting brings %.1f %%, want at least %v", gain, least)
					}
				}
			}
		}
	}
}

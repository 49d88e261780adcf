package grow

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

// Send puts t, which is the pool's from then on, into the pool. It waits while the pool is full, because a full pool keeps the verifier
// busy already (Minions' pause). It counts "pool.pauses", and in "pool.paused" the calls that wait now. Errors: those of tandem.Pool but
// Exhausted, and those of ctx.
func Send(ctx context.Context, pool tandem.Pool, events tandem.Events, counters *tandem.Counters, t tandem.Ticket) (err error) {
	ctx, end := events.Begin(ctx, tandem.StageSend)
	t.Trace = events.Carrier(ctx)
	if err = pool.Put(ctx, t); tandem.KindOf(err) != tandem.Exhausted {
		end(err)
		return err
	}
	begun := time.Now()
	counters.Add("pool.pauses", 1)
	counters.Add("pool.paused", 1)
	defer func() {
		counters.Add("pool.paused", -1)
		counters.Add("pool.paused_us", time.Since(begun).Microseconds())
		end(err, tandem.Attr{Key: "paused_us", Int: time.Since(begun).Microseconds()})
	}()
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return tandem.Errorf("propose", tandem.KindOf(ctx.Err()), "waiting for room in the pool: %w", ctx.Err())
		}
		if err = pool.Put(ctx, t); tandem.KindOf(err) != tandem.Exhausted {
			return err
		}
	}
}

// Clone returns a copy of t: the pool owns one, the caller of Propose another.
func Clone(t tandem.Tree) tandem.Tree {
	return tandem.Tree{Tokens: slices.Clone(t.Tokens), Parents: slices.Clone(t.Parents), LogProbs: slices.Clone(t.LogProbs)}
}

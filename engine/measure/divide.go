package measure

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem/engine"
)

// Division is how a pass is divided between two devices: the left one's share of the outputs of every matrix, and of the blocks of
// attention.
type Division struct {
	Columns float64 `json:"columns"`
	Blocks  float64 `json:"blocks"`
}

// Divided is a model on two devices, each alone, and on both together.
type Divided struct {
	Left, Right *engine.Model // need what Passes needs
	Both        *engine.Model
	Divide      func(Division) error // divides later passes of Both
}

// Balance is what Adjust has found for one kind of pass.
type Balance struct {
	Point
	LeftAlone, RightAlone time.Duration // of a pass
	// Ideal is the time of a pass if both did as much as they do of independent passes at the same time, and divided it without loss.
	Ideal    time.Duration
	Measured []DividedTime // by Even, Alone and Adjusted, in this order
}

// DividedTime is the median time of passes that are divided in one way.
type DividedTime struct {
	Division
	Time time.Duration
}

// The ways of Balance.Measured: half each; by the times of each device alone; adjusted under simultaneous load.
const (
	Even = iota
	Alone
	Adjusted
)

const (
	adjustPasses = 5       // of each way that is tried, in turn with the best so far
	firstStep    = 1. / 16 // of a share
	leastStep    = 1. / 128
	worthIt      = 0.995 // of the best time: what is to be taken for better
)

// Adjust finds how passes like p are best divided: it starts from the times of each device alone, and then moves the shares step by step
// while both work (Ghidorah's ARCA), first that of the columns, then that of the blocks. rounds is the number of passes of each way in
// the final comparison. Errors: the models', and ctx's once it has ended.
func (d *Divided) Adjust(ctx context.Context, p Point, rounds int) (*Balance, error) {
	points := []Point{p}
	left, right, both := rig{model: d.Left, points: points}, rig{model: d.Right, points: points}, rig{model: d.Both, points: points}
	for _, r := range []*rig{&left, &right, &both} {
		r.bases = map[int]*engine.Sequence{}
		defer r.close()
		if _, err := r.pass(ctx, p); err != nil { // fills the context and warms the caches
			return nil, err
		}
	}
	b := &Balance{Point: p}
	var err error
	if b.LeftAlone, err = left.median(ctx, p, rounds); err != nil {
		return nil, err
	}
	if b.RightAlone, err = right.median(ctx, p, rounds); err != nil {
		return nil, err
	}
	if b.Ideal, err = together(ctx, &left, &right, p, rounds); err != nil {
		return nil, err
	}
	share := float64(b.RightAlone) / float64(b.LeftAlone+b.RightAlone)
	alone := Division{share, share}
	best, err := d.climb(ctx, &both, p, alone, func(x *Division) *float64 { return &x.Columns })
	if err == nil && p.Context > 0 {
		best, err = d.climb(ctx, &both, p, best, func(x *Division) *float64 { return &x.Blocks })
	}
	if err != nil {
		return nil, err
	}
	ways := []Division{Even: {0.5, 0.5}, Alone: alone, Adjusted: best}
	times, err := d.compare(ctx, &both, p, ways, rounds)
	for i, t := range times {
		b.Measured = append(b.Measured, DividedTime{ways[i], t})
	}
	if err == nil && times[Alone] < times[Adjusted] { // steps are judged by few passes: not all lead somewhere
		b.Measured[Adjusted] = b.Measured[Alone]
	}
	return b, err
}

// climb moves one share of a division to where passes are quickest, in smaller and smaller steps.
func (d *Divided) climb(ctx context.Context, r *rig, p Point, at Division, share func(*Division) *float64) (Division, error) {
	for step := firstStep; step >= leastStep; step /= 2 {
		for range 8 {
			up, down := at, at
			*share(&up), *share(&down) = min(*share(&at)+step, 1), max(*share(&at)-step, 0)
			times, err := d.compare(ctx, r, p, []Division{at, up, down}, adjustPasses)
			if err != nil {
				return at, err
			}
			next := at
			if limit := worthIt * float64(times[0]); float64(min(times[1], times[2])) < limit {
				if next = up; times[2] < times[1] {
					next = down
				}
			}
			if next == at {
				break
			}
			at = next
		}
	}
	return at, nil
}

// compare returns the median times of passes that are divided in some ways, in turn.
func (d *Divided) compare(ctx context.Context, r *rig, p Point, ways []Division, rounds int) ([]time.Duration, error) {
	times := make([][]time.Duration, len(ways))
	for range rounds {
		for i, w := range ways {
			if err := errors.Join(ctx.Err(), d.Divide(w)); err != nil {
				return nil, err
			}
			took, err := r.pass(ctx, p)
			if err != nil {
				return nil, err
			}
			times[i] = append(times[i], took)
		}
	}
	medians := make([]time.Duration, len(ways))
	for i := range times {
		medians[i] = quantile(times[i], 0.5)
	}
	return medians, nil
}

// median returns the median time of n passes.
func (r *rig) median(ctx context.Context, p Point, n int) (time.Duration, error) {
	var times []time.Duration
	for range n {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		took, err := r.pass(ctx, p)
		if err != nil {
			return 0, err
		}
		times = append(times, took)
	}
	return quantile(times, 0.5), nil
}

// together runs independent passes on both at the same time, until each has run n, and returns the time in which both together do as much
// as one pass.
func together(ctx context.Context, left, right *rig, p Point, n int) (time.Duration, error) {
	var passes [2]atomic.Int64
	var each [2]time.Duration // mean of each side's passes
	var errs [2]error
	var failed atomic.Bool
	enough := func() bool { return failed.Load() || min(passes[0].Load(), passes[1].Load()) >= int64(n) }
	var wg sync.WaitGroup
	start := time.Now()
	for i, r := range []*rig{left, right} {
		wg.Go(func() {
			for !enough() {
				if errs[i] = ctx.Err(); errs[i] == nil {
					_, errs[i] = r.pass(ctx, p)
				}
				if errs[i] != nil {
					failed.Store(true)
					return
				}
				each[i] = time.Since(start) / time.Duration(passes[i].Add(1))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return 0, err
	}
	return time.Duration(1 / (1/float64(each[0]) + 1/float64(each[1]))), nil
}

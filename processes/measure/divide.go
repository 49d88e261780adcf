package measure

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
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
	LeftAlone, RightAlone time.Duration // time of a pass
	// Ideal is the time of a pass that both devices divide without loss, each at its speed on independent passes at the same time.
	Ideal    time.Duration
	Measured []DividedTime // times with Even, Alone and Adjusted, in this order
}

// DividedTime is the median time of passes that are divided in one way.
type DividedTime struct {
	Division
	Time time.Duration
}

// The divisions of Balance.Measured: half each; by the times of each device alone; adjusted under simultaneous load.
const (
	Even = iota
	Alone
	Adjusted
)

const (
	adjustPasses = 5        // of each way that is tried, in turn with the best so far
	leastStep    = 1. / 128 // of the columns
	worthIt      = 0.995    // of the best time: what is to be taken for better
)

// Adjust finds how passes like p are best divided. It starts from the times of each device alone, and then moves the shares step by step
// while both work (Ghidorah's ARCA): first the share of the columns, then that of the blocks, then again a little that of the columns, to
// balance the blocks. rounds is the number of passes of each division in the final comparison. Errors: the models', and ctx's once it has
// ended.
func (d *Divided) Adjust(ctx context.Context, p Point, rounds int) (*Balance, error) {
	left, right, both := rigOf(d.Left, p), rigOf(d.Right, p), rigOf(d.Both, p)
	for _, r := range []*rig{left, right, both} {
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
	if b.Ideal, err = together(ctx, left, right, p, rounds); err != nil {
		return nil, err
	}
	share := float64(b.RightAlone) / float64(b.LeftAlone+b.RightAlone)
	alone := Division{share, share}
	best, err := d.improve(ctx, both, p, alone, true)
	if err != nil {
		return nil, err
	}
	ways := []Division{Even: {0.5, 0.5}, Alone: alone, Adjusted: best}
	times, err := d.compare(ctx, both, p, ways, rounds)
	for i, t := range times {
		b.Measured = append(b.Measured, DividedTime{ways[i], t})
	}
	if err == nil && times[Alone] < times[Adjusted] { // steps are judged by few passes: not all lead somewhere
		b.Measured[Adjusted] = b.Measured[Alone]
	}
	return b, err
}

// improve moves the shares of a division to where passes are quickest: those of the columns, unless they are given, then the boundary of
// attention, and a little the columns again.
func (d *Divided) improve(ctx context.Context, r *rig, p Point, at Division, columns bool) (best Division, err error) {
	if best = at; columns {
		best, err = d.climb(ctx, r, p, best, moveColumns, 8)
	}
	if err != nil || p.Context == 0 {
		return best, err
	}
	from, n := best, p.Context/kernels.Block+1
	best, err = d.climb(ctx, r, p, best, moveBlocks(n), max(1, n/4))
	if err == nil && columns && best != from {
		best, err = d.climb(ctx, r, p, best, moveColumns, 2)
	}
	return best, err
}

// ByTimes divides passes like p by the median times of rounds passes of each device alone. Errors: as Adjust's.
func (d *Divided) ByTimes(ctx context.Context, p Point, rounds int) (Division, error) {
	var alone [2]time.Duration
	for i, m := range []*engine.Model{d.Left, d.Right} {
		r := rigOf(m, p)
		defer r.close()
		_, err := r.pass(ctx, p) // fills the context and warms the caches
		if err == nil {
			alone[i], err = r.median(ctx, p, rounds)
		}
		if err != nil {
			return Division{}, err
		}
	}
	share := float64(alone[1]) / float64(alone[0]+alone[1])
	return Division{share, share}, nil
}

func rigOf(m *engine.Model, p Point) *rig {
	return &rig{model: m, points: []Point{p}, bases: map[int]*engine.Sequence{}}
}

// move returns a division with one of its shares larger by that many of the smallest steps, as far as there is room.
type move func(at Division, steps int) Division

func moveColumns(at Division, steps int) Division {
	at.Columns = min(max(at.Columns+float64(steps)*leastStep, 0), 1)
	return at
}

// moveBlocks moves the boundary of attention from one of a row's n blocks to another; less is no step, since blocks are whole. In front of
// the first the left has none, behind the last it has all.
func moveBlocks(n int) move {
	return func(at Division, steps int) Division {
		cut := min(max(int(math.Round(at.Blocks*float64(n)-0.5)), 0), n-1) // as the plan's
		switch at.Blocks {
		case 0:
			cut = -1
		case 1:
			cut = n
		}
		cut += steps
		switch {
		case cut < 0:
			at.Blocks = 0
		case cut >= n:
			at.Blocks = 1
		default:
			at.Blocks = (float64(cut) + 0.5) / float64(n)
		}
		return at
	}
}

// climb moves a division to where passes are quickest, in smaller and smaller steps, the first of which is first smallest ones long.
func (d *Divided) climb(ctx context.Context, r *rig, p Point, at Division, move move, first int) (Division, error) {
	for step := first; step >= 1; step /= 2 {
		for range 8 {
			up, down := move(at, step), move(at, -step)
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
// as one pass, by the median time of each one's passes.
func together(ctx context.Context, left, right *rig, p Point, n int) (time.Duration, error) {
	var passes [2]atomic.Int64
	var times [2][]time.Duration
	var errs [2]error
	var failed atomic.Bool
	enough := func() bool { return failed.Load() || min(passes[0].Load(), passes[1].Load()) >= int64(n) }
	var wg sync.WaitGroup
	for i, r := range []*rig{left, right} {
		wg.Go(func() {
			for !enough() {
				took, err := r.pass(ctx, p)
				if errs[i] = errors.Join(ctx.Err(), err); errs[i] != nil {
					failed.Store(true)
					return
				}
				times[i] = append(times[i], took)
				passes[i].Add(1)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return 0, err
	}
	return time.Duration(1 / (1/float64(quantile(times[0], 0.5)) + 1/float64(quantile(times[1], 0.5)))), nil
}

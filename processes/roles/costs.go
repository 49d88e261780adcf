package roles

import (
	"context"
	"iter"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/schedule"
)

const (
	// measurements is how many there are of each model. What else the machine does makes passes longer, never shorter, so the least of each
	// kind counts: of two programs that were measured at the same time a drafter said twice the costs, and the pair gained 1.15 to 1.25
	// times instead of 1.35.
	measurements = 2
	// measurePause is between two of them, so that what has disturbed the first is over, such as the start of other processes.
	measurePause = 10 * time.Second
)

// Measured is what passes of something cost.
type Measured struct {
	What  profile.What
	Costs []tandem.Cost
}

// Measuring measures what passes of a model cost while its process and the machine have nothing else to do, keeps it for later starts and
// tells it. One process of a box measures at a time. It implements schedule.Resting; it belongs to the schedule's goroutine, but for Begin.
type Measuring struct {
	process *Process
	kept    profile.Kept
	measure func(ctx context.Context, alive func()) ([]Measured, error)
	tell    atomic.Pointer[func(all []Measured)]
	calm    func() bool // whether the machine has nothing else to do

	rounds int
	least  []Measured
	turn   *profile.Turn
	next   func() (struct{}, bool) // runs a pass; nil: nothing is being measured
	stop   func()
	found  []Measured // by the measurement that has ended
	err    error
}

// NewMeasuring returns one that has found nothing yet, and does nothing before Begin. measure runs passes, and calls alive before each of
// them; it returns the same kinds of passes in the same order each time.
func (r *Process) NewMeasuring(k profile.Kept, measure func(ctx context.Context, alive func()) ([]Measured, error)) *Measuring {
	c := &Measuring{process: r, kept: k, measure: measure, calm: r.Calm}
	if c.calm == nil {
		c.calm = new(calm).now
	}
	return c
}

// Begin lets it measure. tell gets what was found, on the schedule's goroutine, after each measurement.
func (c *Measuring) Begin(tell func(all []Measured)) { c.tell.Store(&tell) }

// Rest implements schedule.Resting: it runs the next pass.
func (c *Measuring) Rest() (again time.Duration) {
	tell := c.tell.Load()
	if tell == nil {
		return schedule.RestAfter
	}
	if c.next == nil {
		if !c.calm() {
			return schedule.RestAfter
		}
		turn, ok, err := c.kept.Turn()
		if !ok {
			return schedule.RestAfter
		}
		if c.turn = turn; err != nil {
			c.notKept(err)
		}
		c.next, c.stop = iter.Pull(c.passes)
	}
	if _, more := c.next(); more {
		return 0
	}
	c.next = nil
	defer c.turn.End()
	switch {
	case tandem.KindOf(c.err) == tandem.Exhausted: // by prefixes that are kept: they are worth more
		return measurePause
	case c.err != nil:
		c.process.Log.Warn("costs of passes not measured", "error", c.err)
		return -1
	}
	c.least = least(c.least, c.found)
	(*tell)(c.least)
	for _, m := range c.least {
		if err := c.turn.Keep(m.What, m.Costs); err != nil {
			c.notKept(err)
			break
		}
	}
	if c.rounds++; c.rounds == measurements {
		return -1
	}
	return measurePause
}

// Rouse implements schedule.Resting: what has been measured by half is measured again later.
func (c *Measuring) Rouse() {
	if c.next != nil {
		c.stop()
		c.next = nil
		c.turn.End()
	}
}

// passes measures once. It yields before each pass but the first, and measures no further if yield says so.
func (c *Measuring) passes(yield func(struct{}) bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.found, c.err = c.measure(ctx, func() {
		if ctx.Err() == nil && !yield(struct{}{}) {
			cancel()
		}
	})
}

// notKept says once why nothing is kept, as on a full disk. What was measured is used nevertheless.
func (c *Measuring) notKept(why error) {
	c.process.Log.Warn("costs of passes are not kept for the next start", "error", why)
	c.kept = profile.Kept{}
}

// least returns b with the least of the times in a and b.
func least(a, b []Measured) []Measured {
	for i := range min(len(a), len(b)) {
		for k, now := range b[i].Costs {
			for _, old := range a[i].Costs {
				if old.Rows == now.Rows && old.Context == now.Context && old.Time < now.Time {
					b[i].Costs[k] = old
				}
			}
		}
	}
	return b
}

// KeptCosts returns the costs that an earlier process has kept. Why they are not used is logged, if that is worth a warning: that there are
// none is not. Errors: those of profile.Kept.Costs.
func (r *Process) KeptCosts(k profile.Kept, what profile.What) ([]tandem.Cost, error) {
	costs, err := k.Costs(what)
	if err != nil && tandem.KindOf(err) != tandem.Stale {
		r.Log.Warn("kept costs of passes are not used: they are measured again", "error", err)
	}
	return costs, err
}

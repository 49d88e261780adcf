package verifier

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
)

// measureTime is how long a verifier measures the costs of its passes, on all its threads.
const measureTime = time.Second

// mostSlower is how much longer the verifier's passes may take, on average, for it to leave cores to a drafter. Overlap with a drafter is
// worth little more than that: 0.91 to 1.00 of the time of taking turns where both use all cores, 1.17 × the speed at best
// (docs/measurements/llmcad.md).
const mostSlower = 1.05

// measured is what is known of m's passes: which costs, on how many threads. After the start it belongs to the schedule's goroutine.
type measured struct {
	Threads int // that there are
	Spare   int // of these, to leave to a drafter
	Used    int // threads of the passes that Costs are of
	Costs   []tandem.Cost
}

// fewer returns the number of threads without Spare; 0: nothing is to be left.
func (now *measured) fewer() int {
	if now.Spare < 1 || now.Spare >= now.Threads {
		return 0
	}
	return now.Threads - now.Spare
}

// left reports whether m goes on without Spare of its threads.
func (now *measured) left() bool { return now.Used < now.Threads }

// costsOf returns the costs of m's passes: those of the plan file, else those that an earlier process has kept. Else they are calculated if
// m's weights are streamed, and if not there are none: the planner learns them from passes, and measuring, which is nil otherwise, measures
// them in idle moments. Those of a streamed mixture only passes correct. If m's passes are about as quick without Spare of its threads, as
// on a machine with more cores than its memory can feed, m goes on without them.
func (c Setup) costsOf(r *roles.Process, m *engine.Model, plan *profile.Plan) (now *measured, measuring *roles.Measuring) {
	now = &measured{Threads: m.About().Threads, Spare: c.SpareThreads}
	if now.Used = now.Threads; !c.Measure {
		return now, nil
	}
	inMemory := streamed(m) == 0 // what is kept is of passes that read nothing from a disk
	if plan.Machine != nil && inMemory {
		err := now.look(m, ofPlan(plan, r.Version))
		if err == nil {
			return now, nil
		}
		r.Log.Warn("plan not used", "file", c.Plan, "error", err)
	}
	kept := profile.Kept{Cache: c.Cache, Version: r.Version}
	if !inMemory {
		kept.Cache = ""
	}
	err := now.look(m, func(w profile.What) ([]tandem.Cost, error) { return r.KeptCosts(kept, w) })
	if err == nil {
		return now, nil
	}
	if s, ok := m.Passes().Streamer(); ok && !(inMemory && s.StreamStats().AllExperts == 0) {
		if now.Costs, err = measure.Calculated(m, s); err != nil {
			r.Log.Warn("costs of streamed passes not calculated", "error", err)
		}
		if s.StreamStats().AllExperts > 0 {
			return now, nil // random tokens would measure what their experts cost, and have them replace those of texts
		}
	}
	all, enough := target(m, now.Threads), target(m, now.fewer())
	return now, r.NewMeasuring(kept, func(ctx context.Context, alive func()) ([]roles.Measured, error) {
		on := func(threads int, w profile.What, budget time.Duration) (roles.Measured, error) {
			costs, err := now.measure(ctx, m, threads, budget, alive)
			return roles.Measured{What: w, Costs: costs}, err
		}
		first, err := on(now.Threads, all, measureTime)
		if err != nil || now.fewer() == 0 {
			return []roles.Measured{first}, err
		}
		second, err := on(now.fewer(), enough, measureTime/2)
		return []roles.Measured{first, second}, err
	})
}

// streamed returns the bytes of weights that a pass of m reads from the disk.
func streamed(m *engine.Model) int64 {
	if s, ok := m.Passes().Streamer(); ok {
		return s.StreamStats().Streamed
	}
	return 0
}

// ofPlan returns the costs that a plan has for this box and that version.
func ofPlan(p *profile.Plan, version string) func(profile.What) ([]tandem.Cost, error) {
	box := profile.ThisBox()
	return func(w profile.What) ([]tandem.Cost, error) { return p.Costs(box, version, w) }
}

// look fills in the costs, and the threads to use, from what was measured before. Errors: those of from, and the model's.
func (now *measured) look(m *engine.Model, from func(profile.What) ([]tandem.Cost, error)) error {
	all, err := from(target(m, now.Threads))
	if err != nil {
		return err
	}
	var fewer []tandem.Cost
	if enough := now.fewer(); enough > 0 {
		if fewer, err = from(target(m, enough)); err != nil {
			return err
		}
	}
	return now.choose(m, all, fewer)
}

// choose takes costs of passes on all threads, and on fewer, which may be nil, and makes m use fewer if they are about as quick. Errors:
// the model's; then nothing has changed.
func (now *measured) choose(m *engine.Model, all, fewer []tandem.Cost) error {
	used, costs := now.Threads, all
	if len(fewer) > 0 && slower(profile.Nearest(fewer), profile.Nearest(all)) <= mostSlower {
		used, costs = now.fewer(), fewer
	}
	if err := now.use(m, used); err != nil {
		return err
	}
	now.Used, now.Costs = used, costs
	return nil
}

// use makes passes use so many of the threads, if they do not: not every device has threads.
func (now *measured) use(m *engine.Model, threads int) error {
	if threads == m.About().Threads {
		return nil
	}
	return m.Passes().SetThreads(threads)
}

// measure returns the costs of passes on that many threads. Whenever alive is called, m uses now.Used again: others may use m then.
func (now *measured) measure(ctx context.Context, m *engine.Model, threads int, budget time.Duration, alive func()) (
	costs []tandem.Cost, err error) {
	if err := now.use(m, threads); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	costs, err = measure.Costs(ctx, m, budget, func() {
		wrong := now.use(m, now.Used)
		alive()
		if ctx.Err() == nil && wrong == nil {
			wrong = now.use(m, threads)
		}
		if wrong != nil {
			cancel(wrong)
		}
	})
	cancel(nil)
	return costs, errors.Join(err, now.use(m, now.Used))
}

// slower returns the ratio of a's times to b's: the mean over the widths in both up to that of a usual tree.
func slower(a, b []tandem.Cost) float64 {
	const widest = 16
	sum, n := 0.0, 0
	for _, x := range a {
		i := slices.IndexFunc(b, func(y tandem.Cost) bool { return y.Rows == x.Rows })
		if i >= 0 && x.Rows <= widest {
			sum, n = sum+float64(x.Time)/float64(b[i].Time), n+1
		}
	}
	if n == 0 {
		return math.Inf(1)
	}
	return sum / float64(n)
}

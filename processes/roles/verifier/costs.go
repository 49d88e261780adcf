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

// measureTime is how long a verifier measures the costs of its passes at its start.
const measureTime = time.Second

// mostSlower is how much longer the verifier's passes may take, on average, for it to leave cores to a drafter. Overlap with a drafter is
// worth little more than that: 0.91 to 1.00 of the time of taking turns where both use all cores, 1.17 × the speed at best
// (docs/measurements/llmcad.md).
const mostSlower = 1.05

// measured is what is known of m's passes: which costs, on how many threads.
type measured struct {
	Threads int // that there are
	Spare   int // of these, to leave to a drafter
	Used    int // threads of the passes that Costs are of
	Costs   []tandem.Cost
	all     map[int][]tandem.Cost // by threads: those of Used and, if Spare was weighed, of the other number
}

// costsOf returns the costs of m's passes: those of the plan file, else those that were kept, else measured now. If that fails it returns
// nil, and the planner learns them. If m's passes are about as quick without spare of its threads, as on a machine with more cores than its
// memory can feed, m goes on without them.
func costsOf(ctx context.Context, r *roles.Process, m *engine.Model, c Setup, plan *profile.Plan) []tandem.Cost {
	now := measured{Threads: m.About().Threads, Spare: c.SpareThreads}
	inMemory := streamed(m) == 0 // what is kept is of passes that read nothing from a disk
	if plan.Machine != nil && inMemory {
		err := now.look(m, ofPlan(plan, r.Version))
		if err == nil {
			return now.Costs
		}
		r.Log.Warn("plan not used", "file", c.Plan, "error", err)
	}
	kept := profile.Kept{Cache: c.Cache, Version: r.Version}
	if !inMemory {
		kept.Cache = ""
	}
	err := now.look(m, kept.Costs)
	if err == nil {
		return now.Costs
	}
	r.CostsNotUsed(err)
	if err := now.measure(ctx, m, r.Alive); err != nil {
		r.Log.Warn("costs of passes not measured", "error", err)
		return nil
	}
	for threads, costs := range now.all {
		r.KeepCosts(kept, target(m, threads), costs)
	}
	return now.Costs
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
	on := func(threads int) ([]tandem.Cost, error) { return from(target(m, threads)) }
	used := now.Threads
	costs, err := on(used)
	if err != nil {
		return err
	}
	if enough := now.Threads - now.Spare; now.Spare > 0 && enough > 0 {
		fewer, err := on(enough)
		if err != nil {
			return err
		}
		if slower(profile.Nearest(fewer), profile.Nearest(costs)) <= mostSlower {
			used, costs = enough, fewer
		}
	}
	if err := now.use(m, used); err != nil {
		return err
	}
	now.Used, now.Costs = used, costs
	return nil
}

// use makes passes use so many of the threads: all of them without asking, as not every device has threads.
func (now *measured) use(m *engine.Model, threads int) error {
	if threads == now.Threads {
		return nil
	}
	return m.Passes().SetThreads(threads)
}

// measure fills in the costs, and the threads to use. Other processes start at the same time and take cores, which makes
// passes on all cores look slow; so fewer threads must also compare well with all of them measured again afterwards.
func (now *measured) measure(ctx context.Context, m *engine.Model, alive func()) (err error) {
	now.Used = now.Threads
	now.Costs, err = measure.Costs(ctx, m, measureTime, alive)
	now.all = map[int][]tandem.Cost{now.Used: now.Costs}
	if err != nil || now.Spare < 1 || now.Spare >= now.Threads {
		return err
	}
	on := func(threads int) (costs []tandem.Cost) {
		if err == nil {
			err = m.Passes().SetThreads(threads)
		}
		if err == nil {
			costs, err = measure.Costs(ctx, m, measureTime/2, alive)
		}
		return costs
	}
	enough := now.Threads - now.Spare
	fewer := on(enough)
	now.all[enough] = fewer
	if err != nil || slower(fewer, now.Costs) > mostSlower {
		return errors.Join(err, m.Passes().SetThreads(now.Threads))
	}
	if again := on(now.Threads); err != nil || slower(fewer, again) > mostSlower {
		return err
	}
	now.Used, now.Costs = enough, fewer
	return m.Passes().SetThreads(enough)
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

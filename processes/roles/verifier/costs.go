package verifier

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/modelfile/files"
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

// measured is the file that a verifier leaves beside its socket for its successor in the same run, so that a restart is quick: the costs,
// and what they depend on.
type measured struct {
	Model    string
	Bytes    int64
	Modified time.Time
	Threads  int
	Spare    int
	ISA      string
	KVType   string
	Streamed int64 // bytes of weights that a pass reads from the disk
	Used     int   // threads of the passes that Costs are of
	Costs    []tandem.Cost
}

// costsOf returns the costs of m's passes: those that a predecessor on the same socket measured, else those of the plan file, else measured
// now. If that fails it returns nil, and the planner learns them. If m's passes are about as quick without
// spare of its threads, as on a machine with more cores than its memory can feed, m goes on without them.
func costsOf(ctx context.Context, r *roles.Process, m *engine.Model, c Setup, plan *profile.Plan,
	listen string) []tandem.Cost {
	now := measured{Model: c.Target, Threads: m.About().Threads, Spare: c.SpareThreads, ISA: m.About().Kernels,
		KVType: c.Models.Options.KVType}
	if info, err := os.Stat(c.Target); err == nil {
		now.Bytes, now.Modified = info.Size(), info.ModTime().UTC()
	}
	now.Streamed = streamed(m)
	file := costsFile(listen)
	if old := now.read(file); old != nil {
		if err := now.use(m, old.Used); err != nil {
			r.Log.Warn("costs of passes not used", "error", err)
			return nil
		}
		return old.Costs
	}
	if plan.Machine != nil && now.Streamed == 0 { // a plan's costs are those of a model in memory
		err := now.look(m, plan, r.Version)
		if err == nil {
			return now.Costs
		}
		r.Log.Warn("plan not used", "file", c.Plan, "error", err)
	}
	if err := now.measure(ctx, m, r.Alive); err != nil {
		r.Log.Warn("costs of passes not measured", "error", err)
		return nil
	}
	if err := now.write(file); err != nil {
		r.Log.Warn("costs of passes not kept for a restart", "file", file, "error", err)
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

// look fills in the costs, and the threads to use, from a plan. Errors: those of profile.Plan.Costs, and the model's.
func (now *measured) look(m *engine.Model, p *profile.Plan, version string) error {
	box := profile.ThisBox()
	on := func(threads int) ([]tandem.Cost, error) {
		return p.Costs(box, version, target(m, threads))
	}
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
	if now.Costs, err = measure.Costs(ctx, m, measureTime, alive); err != nil || now.Spare < 1 || now.Spare >= now.Threads {
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

// costsFile returns where a process that listens on a socket keeps its costs; "" for one that does not.
func costsFile(listen string) string {
	socket, found := strings.CutPrefix(listen, "unix://")
	if !found {
		return ""
	}
	return socket + ".costs.json"
}

// read returns what is in file if it was measured under the same conditions, else nil.
func (now measured) read(file string) *measured {
	if file == "" {
		return nil
	}
	b, err := files.ReadFile(file, 1<<20)
	if err != nil {
		return nil
	}
	var old measured
	if json.Unmarshal(b, &old) != nil {
		return nil
	}
	same := old.Streamed == now.Streamed && old.Model == now.Model && old.Bytes == now.Bytes && old.Modified.Equal(now.Modified) &&
		old.Threads == now.Threads && old.Spare == now.Spare && old.ISA == now.ISA && old.KVType == now.KVType
	impossible := func(c tandem.Cost) bool { return !c.Valid() }
	if !same || len(old.Costs) == 0 || old.Used < min(1, now.Threads) || old.Used > now.Threads ||
		slices.ContainsFunc(old.Costs, impossible) {
		return nil
	}
	return &old
}

// write writes the costs to file, atomically.
func (now measured) write(file string) error {
	if file == "" {
		return nil
	}
	b, err := json.Marshal(now)
	if err != nil {
		return err
	}
	if err := files.Replace(file, b); err != nil {
		return files.Reason(err)
	}
	return nil
}

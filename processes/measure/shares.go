package measure

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
)

// Shared is the best division of passes of one kind, with their median times: divided, and with everything on one side.
type Shared struct {
	Division          kernels.Division
	Time, Left, Right time.Duration
}

// Shares finds how passes of a model on a divided device are best divided, for each kind of pass: it measures them on each side alone,
// starts from these times, and moves the shares while both sides work. Behind further contexts only the boundary of attention moves. If one
// side alone is quicker than both, it gets everything, such as prompts that a GPU reads best. No second model is needed: a side measured
// alone simply gets everything. points are by rows, then by context. alive, if not nil, is called before each. The passes of m are then
// divided as what is returned says. Errors: the model's, Unsupported if its device is not divided, and ctx's once it has ended.
func Shares(ctx context.Context, m *engine.Model, points []Point, alive func()) (all []Shared, err error) {
	d := Divided{Both: m, Divide: func(x Division) error {
		return m.Passes().Divide([]kernels.Division{{Rows: 1, Columns: x.Columns, Blocks: x.Blocks}})
	}}
	r := rig{model: m, points: points, bases: map[int]*engine.Sequence{}}
	defer r.close()
	for i, p := range points {
		if alive != nil {
			alive()
		}
		var before *Shared
		if i > 0 && points[i-1].Rows == p.Rows && points[i-1].Prefill == p.Prefill {
			before = &all[i-1]
		}
		s, err := d.share(ctx, &r, p, before)
		if err != nil {
			return nil, err
		}
		all = append(all, *s)
	}
	return all, m.Passes().Divide(Divisions(all))
}

// Divisions returns the divisions of all, as kernels.Divider takes them.
func Divisions(all []Shared) (out []kernels.Division) {
	for _, s := range all {
		out = append(out, s.Division)
	}
	return out
}

// share finds the division of one kind of pass. before is that behind a shorter context; nil for none.
func (d *Divided) share(ctx context.Context, r *rig, p Point, before *Shared) (*Shared, error) {
	ways := []Division{{Columns: 1, Blocks: 1}, {}, {}}
	if _, err := d.compare(ctx, r, p, ways[:1], 1); err != nil { // fills the context and warms the caches
		return nil, err
	}
	alone, err := d.compare(ctx, r, p, ways[:2], adjustPasses)
	if err != nil {
		return nil, err
	}
	share := float64(alone[1]) / float64(alone[0]+alone[1])
	best := Division{share, share}
	if before != nil {
		best.Columns = before.Division.Columns
	}
	if best, err = d.improve(ctx, r, p, best, before == nil); err != nil {
		return nil, err
	}
	ways[2] = best
	times, err := d.compare(ctx, r, p, ways, adjustPasses)
	if err != nil {
		return nil, err
	}
	took := slices.Min(times)
	best = ways[slices.Index(times, took)]
	return &Shared{Division: kernels.Division{Rows: p.Rows, Context: p.Context, Columns: best.Columns, Blocks: best.Blocks}, Time: took,
		Left: times[0], Right: times[1]}, nil
}

const (
	guessBytes = 128 << 20             // read by each probe in turn
	guessLong  = 33 * time.Millisecond // of each of three limits
)

// guessWidths are the rows for which GuessShares returns a division: from passes that are bound by reading weights to those bound by
// multiplying.
var guessWidths = []int{1, 8, 16, 64, 256}

// GuessShares estimates the best divisions of passes of a model on a divided device from the rates at which each side alone reads and
// multiplies: reading is the limit with few rows, multiplying with many. It takes some tenths of a second, and changes nothing. Errors: the
// probes', Unsupported if the device is not divided.
func GuessShares(m *engine.Model) (all []kernels.Division, err error) {
	var limits [2]kernels.Limits
	left, right := m.Passes().Sides()
	if left == nil {
		return nil, m.Passes().Divide(nil)
	}
	for i, d := range []kernels.Device{left, right} {
		probe, err := d.NewProbe(guessBytes)
		if err != nil {
			return nil, err
		}
		limits[i], err = probe.Sample(guessLong)
		probe.Close()
		if err != nil {
			return nil, err
		}
	}
	blocks := limits[0].ReadBytes / (limits[0].ReadBytes + limits[1].ReadBytes)
	for _, w := range guessWidths {
		a, b := m.Passes().Work().Limit(limits[0], w, w), m.Passes().Work().Limit(limits[1], w, w)
		all = append(all, kernels.Division{Rows: w, Columns: float64(b) / float64(a+b), Blocks: blocks})
	}
	return all, kernels.CheckDivisions(all)
}

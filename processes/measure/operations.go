package measure

import (
	"context"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
)

// Breakdown tells where the time of passes of one kind goes.
type Breakdown struct {
	Point
	Passes int
	Total  time.Duration    // time of all passes
	Ops    []kernels.OpTime // operations of all passes, in order of the program
}

// Matrices returns the share of the threads' time that they spent on products with weights.
func (b *Breakdown) Matrices() float64 {
	var busy time.Duration
	threads := 0
	for _, o := range b.Ops {
		threads = len(o.Busy)
		if strings.HasPrefix(o.Kind, "matmul") {
			for _, d := range o.Busy {
				busy += d
			}
		}
	}
	if b.Total <= 0 || threads == 0 {
		return 0
	}
	return busy.Seconds() / (b.Total.Seconds() * float64(threads))
}

// add adds one pass.
func (b *Breakdown) add(took time.Duration, ops []kernels.OpTime) {
	b.Passes++
	b.Total += took
	if b.Ops == nil {
		b.Ops = ops
		return
	}
	for i, o := range ops { // of the same program, so the same kinds
		for t := range o.Busy {
			b.Ops[i].Busy[t] += o.Busy[t]
			b.Ops[i].Wait[t] += o.Wait[t]
		}
	}
}

// Operations times the operations of n passes of each kind, in turn, after a first round that does not count. Prompts run as in Passes.
// Reading the clock makes these passes a little slower than others. Errors: those of Passes, and Unsupported for a device that cannot tell.
func Operations(ctx context.Context, m *engine.Model, points []Point, n int) ([]Breakdown, error) {
	r := rig{model: m, points: points, bases: map[int]*engine.Sequence{}}
	defer r.close()
	all := make([]Breakdown, len(points))
	for round := range n + 1 {
		for i, p := range points {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			all[i].Point = p
			if p.Prefill && round%4 != 1 {
				continue
			}
			if r.into = nil; round > 0 {
				r.into = &all[i]
			}
			if _, err := r.pass(ctx, p); err != nil {
				return nil, err
			}
		}
	}
	return all, m.Passes().TimeOperations(false)
}

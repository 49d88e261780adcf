package passes

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/processes/measure"
)

// Split measures passes of a model that are divided between two devices.
type Split struct {
	Name     string // of the model
	Contexts []int  // tokens before the rows of a pass
	KVType   string
	Both     *split.Device
	bench.Passes
}

// SplitResult is the result of Split, for one pair of devices.
type SplitResult struct {
	Model   string      `json:"model"`
	Left    string      `json:"left"`
	Right   string      `json:"right"`
	Slower  int         `json:"slower"` // times that the right does each product and block of attention
	Divided []splitPass `json:"passes"`
	// How often both meet in a pass, and how long one meeting takes if both come at once.
	Meetings  int     `json:"meetings"`
	MeetingUS float64 `json:"meeting_us"`
}

// splitPass is one kind of pass.
type splitPass struct {
	Width   int     `json:"width"`
	Context int     `json:"context"`
	LeftMS  float64 `json:"left_alone_ms"`
	RightMS float64 `json:"right_alone_ms"`
	IdealMS float64 `json:"ideal_ms"` // if both did as much as of independent passes at the same time
	Even    way     `json:"even"`
	Alone   way     `json:"by_times_alone"`
	Best    way     `json:"adjusted"`
	// What one side reads that the other has written, for one pass: outputs of products here; with matrices divided by rows and columns in
	// turn, as Megatron does it, the partial sums of its all-reduce, which are added as well. Computed, not measured.
	Bytes          int64 `json:"moved_bytes"`
	AllReduceBytes int64 `json:"all_reduce_bytes"`
}

// way is passes that are divided in one way.
type way struct {
	measure.Division
	MS    float64 `json:"ms"`
	Share float64 `json:"share"` // ideal ÷ measured
}

// Options returns the options with which each of the three models must be opened; the caller adds the device. Errors: Invalid, in the
// words of the command line.
func (s Split) Options(context int) (engine.Options, error) {
	if err := s.Passes.Validate(); err != nil {
		return engine.Options{}, err
	}
	if len(s.Contexts) == 0 || slices.Min(s.Contexts) < 1 || slices.Max(s.Contexts) > context {
		return engine.Options{}, tandem.Errorf("", tandem.Invalid, "--context %v: %s has a context of %d tokens", s.Contexts, s.Name,
			context)
	}
	widest := slices.Max(s.Widths)
	return engine.Options{KVType: s.KVType, MaxRows: max(256, widest), MaxWanted: widest,
		KVPages: measure.Pages(measure.GridPoints(s.Widths, s.Contexts))}, nil
}

// Run measures. Errors: those of the models and devices, and that of ctx.
func (s Split) Run(ctx context.Context, d *measure.Divided) (r *SplitResult, err error) {
	r = &SplitResult{Model: s.Name, Slower: 1}
	c, plan := d.Both.Config(), d.Both.Passes().Plan()
	r.Meetings = s.Both.Meetings(plan)
	took, err := s.Both.MeetingTime()
	if err != nil {
		return nil, err
	}
	r.MeetingUS = figures.US(took)
	for _, p := range measure.GridPoints(s.Widths, s.Contexts) {
		b, err := d.Adjust(ctx, p, s.Rounds)
		if err != nil {
			return nil, err
		}
		of := func(i int) way {
			t := b.Measured[i]
			return way{t.Division, figures.MS(t.Time), figures.Share(float64(b.Ideal), float64(t.Time))}
		}
		x := splitPass{Width: p.Rows, Context: p.Context, LeftMS: figures.MS(b.LeftAlone), RightMS: figures.MS(b.RightAlone),
			IdealMS: figures.MS(b.Ideal), Even: of(measure.Even), Alone: of(measure.Alone), Best: of(measure.Adjusted)}
		x.Bytes, x.AllReduceBytes = moved(c, p.Rows)
		r.Divided = append(r.Divided, x)
	}
	return r, nil
}

// moved returns the bytes of a pass of so many rows that one side reads and the other has written: outputs of products; and the partial
// sums of an all-reduce after the output and the down product of every layer.
func moved(c engine.Config, rows int) (outputs, allReduce int64) {
	attention := (c.Heads + 2*c.KVHeads) * c.HeadDim
	return 4 * int64(rows) * int64(c.Layers) * int64(attention+2*c.FFN+2*c.Dim), 4 * int64(rows) * int64(c.Layers) * int64(4*c.Dim)
}

// Print writes the result as text.
func (r *SplitResult) Print(to io.Writer) error {
	fmt.Fprintf(to, "%s, left %s, right %s, which does every product and block of attention %d times\n", r.Model, r.Left, r.Right, r.Slower)
	fmt.Fprintf(to, "%d meetings a pass; one takes %.2f µs if both come at once\n", r.Meetings, r.MeetingUS)
	t := figures.NewTable(to, "%d\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t%s")
	t.Head("rows", "context", "left ms", "right ms", "ideal ms", "even", "share", "alone", "share", "adjusted", "share", "columns",
		"blocks", "of alone", "moved", "all-reduce")
	for _, p := range r.Divided {
		t.Row(p.Width, p.Context, p.LeftMS, p.RightMS, p.IdealMS, p.Even.MS, p.Even.Share, p.Alone.MS, p.Alone.Share, p.Best.MS,
			p.Best.Share, p.Best.Columns, p.Best.Blocks, p.Alone.Columns, figures.MiB(p.Bytes), figures.MiB(p.AllReduceBytes))
	}
	return t.Flush()
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/measure"
)

// Boundary measures attention alone, divided between two devices at every boundary there is.
type Boundary struct {
	Name     string // of the model
	Config   engine.Config
	KVType   string
	Contexts []int
	Kept     int // the context whose best boundary, as a share of the blocks, is kept for all others
	Rows     int
	Rounds   int
	// The devices: the left, the right, and both, which Divide divides.
	Left, Right, Both kernels.Device
	Divide            func(measure.Division) error
}

// boundaryLayers is how many layers of attention a pass has: enough for their keys and values not to stay in caches.
const boundaryLayers = 4

// BoundaryResult is the result of Boundary.
type BoundaryResult struct {
	Model   string          `json:"model"`
	Left    string          `json:"left"`
	Right   string          `json:"right"`
	Slower  int             `json:"slower"`
	Rows    int             `json:"rows"`
	Kept    int             `json:"kept_context"`
	Context []boundaryTimes `json:"contexts"`
}

// boundaryTimes are the times of a layer's attention behind one context, in µs.
type boundaryTimes struct {
	Context int     `json:"context"`
	Blocks  int     `json:"blocks"` // of 256 positions that the context begins
	LeftUS  float64 `json:"left_alone_us"`
	RightUS float64 `json:"right_alone_us"`
	IdealUS float64 `json:"ideal_us"` // if both did as much as alone
	// The boundary between context and tree, as in the paper's static division: the block in which the context ends is divided by KV heads.
	StaticUS float64 `json:"static_us"`
	KeptUS   float64 `json:"kept_us"`   // the share that is best behind the kept context
	MovingUS float64 `json:"moving_us"` // the best boundary of this context
	Moving   float64 `json:"moving"`    // the left's share of the blocks there
}

// Validate returns Invalid for what cannot be measured, in the words of the command line.
func (b *Boundary) Validate() error {
	if err := (Passes{Widths: []int{b.Rows}, Rounds: b.Rounds}).Validate(); err != nil {
		return err
	}
	if len(b.Contexts) == 0 || slices.Min(b.Contexts) < 1 || slices.Max(b.Contexts) > 1<<16 {
		return tandem.Errorf("", tandem.Invalid, "--context %v: want 1 to %d", b.Contexts, 1<<16)
	}
	if !slices.Contains(b.Contexts, b.Kept) {
		b.Contexts = append(b.Contexts, b.Kept)
	}
	slices.Sort(b.Contexts)
	b.Contexts = slices.Compact(b.Contexts)
	return nil
}

// Run measures. Errors: Validate's, the devices', and that of ctx.
func (b *Boundary) Run(ctx context.Context) (*BoundaryResult, error) {
	if err := b.Validate(); err != nil {
		return nil, err
	}
	r := &BoundaryResult{Model: b.Name, Left: fmt.Sprint(b.Left.About()), Right: fmt.Sprint(b.Right.About()), Rows: b.Rows, Kept: b.Kept}
	kept, err := b.at(ctx, b.Kept, 0)
	if err != nil {
		return nil, err
	}
	for _, n := range b.Contexts {
		x, err := b.at(ctx, n, kept.Moving)
		if err != nil {
			return nil, err
		}
		r.Context = append(r.Context, *x)
	}
	return r, nil
}

// at measures behind one context.
func (b *Boundary) at(ctx context.Context, context int, kept float64) (*boundaryTimes, error) {
	n := context/kernels.Block + 1
	x := &boundaryTimes{Context: context, Blocks: n}
	var err error
	for d, to := range map[kernels.Device]*float64{b.Left: &x.LeftUS, b.Right: &x.RightUS} {
		if *to, err = b.alone(ctx, d, context); err != nil {
			return nil, err
		}
	}
	x.IdealUS = 1 / (1/x.LeftUS + 1/x.RightUS)
	shares := []float64{0, 1, kept}
	for cut := range n {
		shares = append(shares, (float64(cut)+0.5)/float64(n))
	}
	static := (float64(context/kernels.Block) + 0.5) / float64(n)
	times, err := b.divided(ctx, context, append(shares, static))
	if err != nil {
		return nil, err
	}
	x.StaticUS, x.KeptUS = times[len(shares)], times[2]
	best := 0
	for i, t := range times[:len(shares)] {
		if i != 2 && t < times[best] {
			best = i
		}
	}
	x.Moving = shares[best]
	// Of so many boundaries the quickest is partly luck: it is measured again, beside the two that stay.
	if times, err = b.divided(ctx, context, []float64{x.Moving, kept, static}); err != nil {
		return nil, err
	}
	x.MovingUS, x.KeptUS, x.StaticUS = times[0], times[1], times[2]
	return x, nil
}

func (b *Boundary) alone(ctx context.Context, d kernels.Device, context int) (float64, error) {
	r, err := b.runner(d, context)
	if err != nil {
		return 0, err
	}
	defer r.close()
	took, err := medianTime(ctx, b.Rounds, r.run)
	return figures.US(took) / boundaryLayers, err
}

// divided returns the median times with the left's shares, in turn.
func (b *Boundary) divided(ctx context.Context, context int, shares []float64) (us []float64, err error) {
	r, err := b.runner(b.Both, context)
	if err != nil {
		return nil, err
	}
	defer r.close()
	times := make([][]time.Duration, len(shares))
	for round := range b.Rounds + 1 {
		for i, share := range shares {
			if err := errors.Join(ctx.Err(), b.Divide(measure.Division{Columns: 0.5, Blocks: share})); err != nil {
				return nil, err
			}
			begun := time.Now()
			if err := r.run(); err != nil {
				return nil, err
			}
			if took := time.Since(begun); round > 0 { // the first finds the caches cold
				times[i] = append(times[i], took)
			}
		}
	}
	for _, t := range times {
		us = append(us, figures.US(figures.Quantile(t, 0.5))/boundaryLayers)
	}
	return us, nil
}

// attending is a pass of nothing but attention.
type attending struct {
	runner kernels.Runner
	cache  kernels.Cache
	pass   *kernels.Pass
}

func (a *attending) run() error { return a.runner.Run(a.pass) }

func (a *attending) close() {
	a.runner.Close()
	a.cache.Close()
}

// runner makes a pass over a tree behind a context ready on a device. The cache holds zeros, which take as long as other keys and values.
func (b *Boundary) runner(d kernels.Device, context int) (*attending, error) {
	c := b.Config
	typ, err := kernels.ParseKVType(b.KVType)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "%w", err)
	}
	pass, pages := treePass(b.Rows, context)
	p := kernels.NewProgram(b.Rows, b.Rows)
	p.KV = kernels.UniformKV(boundaryLayers, c.KVHeads, c.HeadDim, typ)
	q, out := p.Buf(c.Heads*c.HeadDim), p.Act(c.Heads*c.HeadDim)
	for i := range boundaryLayers {
		p.Attention(q, i, c.Heads, kernels.AttentionOpt{Scale: 0.125}, out)
	}
	cache, err := d.NewCache(p.KV, pages)
	if err != nil {
		return nil, err
	}
	if err := cache.Populate(0, cache.Bytes()); err != nil {
		cache.Close()
		return nil, err
	}
	r, err := d.Compile(p, nil, cache)
	if err != nil {
		cache.Close()
		return nil, err
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range b.Rows {
		for j, row := 0, r.Row(q, i); j < len(row); j++ {
			row[j] = float32(random.NormFloat64())
		}
	}
	return &attending{r, cache, pass}, nil
}

// Print writes the result as text.
func (r *BoundaryResult) Print(to io.Writer) error {
	fmt.Fprintf(to, "%s, attention of a layer, %d rows, left %s, right %s, which does every block %d times; µs\n", r.Model, r.Rows, r.Left,
		r.Right, r.Slower)
	t := figures.NewTable(to, "%d\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f")
	t.Head("context", "blocks", "left", "right", "ideal", "static", fmt.Sprintf("as at %d", r.Kept), "moving", "of blocks", "of static",
		fmt.Sprintf("of %d's", r.Kept), "share of ideal")
	for _, x := range r.Context {
		t.Row(x.Context, x.Blocks, x.LeftUS, x.RightUS, x.IdealUS, x.StaticUS, x.KeptUS, x.MovingUS, x.Moving,
			figures.Share(x.MovingUS, x.StaticUS), figures.Share(x.MovingUS, x.KeptUS), figures.Share(x.IdealUS, x.MovingUS))
	}
	return t.Flush()
}

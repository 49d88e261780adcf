package passes

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/kernels"
)

// Kernels measures products of single matrices beside the limits of the machine.
type Kernels struct {
	Types      []string // of weights, such as q8_0; none: all with kernels of their own
	Rows, Cols int      // of a matrix: outputs, inputs
	bench.Passes
}

// kernelResult is one kind of product.
type kernelResult struct {
	Type        string  `json:"type"`
	Rows        int     `json:"rows"`
	Cols        int     `json:"cols"`
	Width       int     `json:"width"`
	US          float64 `json:"us"` // of the best pass
	LimitUS     float64 `json:"limit_us"`
	Share       float64 `json:"share"`
	MedianUS    float64 `json:"median_us"`
	MedianShare float64 `json:"median_share"` // of the limits just before each pass
	GBs         float64 `json:"gb_s"`
	MACs        float64 `json:"mac_t_s"`
}

// KernelsResult is the result of Kernels.
type KernelsResult struct {
	ISA     string         `json:"isa"`
	Threads int            `json:"threads"`
	Limits  bench.Limits   `json:"limits"` // the best of the run
	Before  bench.Limits   `json:"limits_before"`
	After   bench.Limits   `json:"limits_after"`
	Kernels []kernelResult `json:"kernels"`
}

// probeBytes is what limits of reading are measured over, turnBytes the matrices of one type that are
// used in turn; probeLong is how long limits are measured at the start and the end.
const (
	probeBytes = 512 << 20
	turnBytes  = 320 << 20
	probeLong  = 100 * time.Millisecond
)

// Run measures on a device. Errors: those of Validate; Exhausted if memory is short; that of ctx.
func (k Kernels) Run(ctx context.Context, d kernels.Device) (*KernelsResult, error) {
	types, err := k.types()
	if err != nil {
		return nil, err
	}
	probe, err := d.NewProbe(probeBytes)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Exhausted, "%w", err)
	}
	defer probe.Close()
	before, err := probe.Sample(probeLong)
	if err != nil {
		return nil, err
	}
	best := before
	var products []Product
	for _, t := range types {
		set, err := NewMatrices(d, t, k.Rows, k.Cols, slices.Max(k.Widths), turnBytes)
		if err != nil {
			return nil, tandem.Errorf("", tandem.Exhausted, "%s matrices of %d × %d: %w", t, k.Rows, k.Cols, err)
		}
		found, err := set.Measure(ctx, probe, k.Widths, k.Rounds, &best)
		set.Close()
		if err != nil {
			return nil, err
		}
		products = append(products, found...)
	}
	after, err := probe.Sample(probeLong)
	if err != nil {
		return nil, err
	}
	best = best.Max(after)
	r := &KernelsResult{ISA: d.About().Kernels, Threads: d.About().Threads,
		Limits: bench.LimitsOf(best), Before: bench.LimitsOf(before), After: bench.LimitsOf(after)}
	for _, p := range products {
		p.Settle(best)
		r.Kernels = append(r.Kernels, resultOf(p))
	}
	return r, nil
}

// Validate returns Invalid for impossible settings, in the words of the command line.
func (k Kernels) Validate() error {
	_, err := k.types()
	return err
}

// types returns the weight types to measure.
func (k Kernels) types() (types []kernels.Type, err error) {
	if err := k.Passes.Validate(); err != nil {
		return nil, err
	}
	var names []string
	for _, t := range kernels.Types() {
		names = append(names, t.String())
		elems, _ := t.Block()
		chosen := slices.Contains(k.Types, t.String()) || len(k.Types) == 0
		if chosen && (k.Cols < 1 || k.Rows < 1 || k.Cols%elems != 0 || k.Cols > 1<<20 || k.Rows > 1<<20) {
			return nil, tandem.Errorf("", tandem.Invalid, "--rows %d --cols %d: want 1 to %d of each, columns a multiple of %d for %s",
				k.Rows, k.Cols, 1<<20, elems, t)
		}
		if chosen {
			types = append(types, t)
		}
	}
	for _, name := range k.Types {
		if !slices.Contains(names, name) {
			return nil, tandem.Errorf("", tandem.Invalid, "--type %s: want of %s", name, strings.Join(names, ", "))
		}
	}
	return types, nil
}

func resultOf(p Product) kernelResult {
	macs := float64(p.Rows) * float64(p.Cols) * float64(p.Width)
	return kernelResult{
		Type: p.Type.String(), Rows: p.Rows, Cols: p.Cols, Width: p.Width,
		US: figures.US(p.Best), LimitUS: figures.US(p.Limit), Share: p.Share, MedianUS: figures.US(p.Median), MedianShare: p.MedianShare,
		GBs: float64(p.Bytes) / p.Best.Seconds() / 1e9, MACs: macs / p.Best.Seconds() / 1e12,
	}
}

// Print writes the result as text.
func (r *KernelsResult) Print(to io.Writer) error {
	fmt.Fprintf(to, "%s, %d threads: %s (before: %s; after: %s)\n", r.ISA, r.Threads, r.Limits, r.Before, r.After)
	t := figures.NewTable(to, "%s\t%d × %d\t%d\t%.1f\t%.1f\t%.2f\t%.1f\t%.2f\t%.1f\t%.0f")
	t.Head("type", "outs × ins", "rows", "µs", "limit", "share", "median µs", "median share", "GB/s", "Gmac/s")
	for _, k := range r.Kernels {
		t.Row(k.Type, k.Rows, k.Cols, k.Width, k.US, k.LimitUS, k.Share, k.MedianUS, k.MedianShare, k.GBs, 1e3*k.MACs)
	}
	return t.Flush()
}

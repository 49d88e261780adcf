package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/measure"
	kernels "github.com/tandem-llm/tandem/kernels/cpu"
)

// computeFlags say with what a benchmark computes.
type computeFlags struct {
	Threads int    `help:"Threads; 0 = all cores." default:"0"`
	ISA     string `name:"isa" help:"Instruction set: auto, generic, avx2, avx512, neon, neon-dot, neon-i8mm." default:"auto"`
}

// widthFlags say how many rows the passes of a benchmark have, and how many passes count.
type widthFlags struct {
	Width  []int `help:"Rows of a pass." default:"1,2,4,8,16,32,64" placeholder:"N,…" setting:"-"`
	Rounds int   `help:"Passes of each kind, in turn; the best and the median count." default:"20" setting:"-"`
}

func (w widthFlags) check() error {
	for _, n := range w.Width {
		if n < 1 || n > 1024 {
			return tandem.Errorf("", tandem.Invalid, "--width %d: want 1 to 1024 rows", n)
		}
	}
	if len(w.Width) == 0 || w.Rounds < 1 || w.Rounds > 100_000 {
		return tandem.Errorf("", tandem.Invalid, "--rounds is %d, with %d widths: want 1 to 100000 rounds of at least one width", w.Rounds, len(w.Width))
	}
	return nil
}

type benchKernelsCmd struct {
	Type []string `help:"Weight types, like q8_0; default: all with kernels of their own." placeholder:"TYPE,…" setting:"-"`
	Rows int      `help:"Outputs of a matrix." default:"8192" setting:"-"`
	Cols int      `help:"Inputs of a matrix." default:"2048" setting:"-"`
	widthFlags
	computeFlags
	output
}

// limitsResult is what the machine can do, as --json prints it.
type limitsResult struct {
	Read     float64 `json:"read_gb_s"`
	MAC      float64 `json:"mac_t_s"`       // int8 multiply-adds, 10¹² a second
	FloatMAC float64 `json:"float_mac_t_s"` // f32 fused multiply-adds
}

func limitsOf(l kernels.Limits) limitsResult {
	return limitsResult{l.ReadBytes / 1e9, l.IntMACs / 1e12, l.FloatMACs / 1e12}
}

func (l limitsResult) String() string {
	return fmt.Sprintf("%.1f GB/s read, %.0f Gmac/s int8, %.0f Gmac/s f32", l.Read, 1e3*l.MAC, 1e3*l.FloatMAC)
}

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

type benchKernelsResult struct {
	ISA     string         `json:"isa"`
	Threads int            `json:"threads"`
	Limits  limitsResult   `json:"limits"` // the best of the run
	Before  limitsResult   `json:"limits_before"`
	After   limitsResult   `json:"limits_after"`
	Kernels []kernelResult `json:"kernels"`
}

// probeBytes is what limits of reading are measured over, turnBytes the matrices of one type that are
// used in turn; probeLong is how long limits are measured at the start and the end.
const (
	probeBytes = 512 << 20
	turnBytes  = 320 << 20
	probeLong  = 100 * time.Millisecond
)

// Run measures single matrices.
func (c *benchKernelsCmd) Run(a *app) error {
	types, err := c.types()
	if err != nil {
		return err
	}
	pool, err := c.open()
	if err != nil {
		return err
	}
	defer pool.Close()
	probe, err := pool.NewProbe(probeBytes)
	if err != nil {
		return tandem.Errorf("", tandem.Exhausted, "%w", err)
	}
	defer probe.Close()
	before, err := probe.Sample(probeLong)
	if err != nil {
		return err
	}
	best := before
	var products []measure.Product
	for _, t := range types {
		set, err := measure.NewMatrices(t, c.Rows, c.Cols, slices.Max(c.Width), turnBytes)
		if err != nil {
			return tandem.Errorf("", tandem.Exhausted, "%s matrices of %d × %d: %w", t, c.Rows, c.Cols, err)
		}
		found, err := set.Measure(a.ctx, pool, probe, c.Width, c.Rounds, &best)
		set.Close()
		if err != nil {
			return err
		}
		products = append(products, found...)
	}
	after, err := probe.Sample(probeLong)
	if err != nil {
		return err
	}
	best = best.Max(after)
	r := benchKernelsResult{ISA: pool.ISA().String(), Threads: pool.Threads(), Limits: limitsOf(best), Before: limitsOf(before), After: limitsOf(after)}
	for _, p := range products {
		p.Settle(best)
		r.Kernels = append(r.Kernels, resultOf(p))
	}
	if c.JSON {
		return printJSON(a.stdout, r)
	}
	return r.print(a)
}

// types returns the weight types to measure.
func (c *benchKernelsCmd) types() (types []kernels.Type, err error) {
	if err := c.widthFlags.check(); err != nil {
		return nil, err
	}
	var names []string
	for _, t := range kernels.Types() {
		names = append(names, t.String())
		elems, _ := t.Block()
		chosen := slices.Contains(c.Type, t.String()) || len(c.Type) == 0 && !t.Unpacked()
		if chosen && (c.Cols < 1 || c.Rows < 1 || c.Cols%elems != 0 || c.Cols > 1<<20 || c.Rows > 1<<20) {
			return nil, tandem.Errorf("", tandem.Invalid, "--rows %d --cols %d: want 1 to %d of each, columns a multiple of %d for %s", c.Rows, c.Cols, 1<<20, elems, t)
		}
		if chosen {
			types = append(types, t)
		}
	}
	for _, name := range c.Type {
		if !slices.Contains(names, name) {
			return nil, tandem.Errorf("", tandem.Invalid, "--type %s: want of %s", name, strings.Join(names, ", "))
		}
	}
	return types, nil
}

// open starts the threads.
func (c computeFlags) open() (*kernels.Pool, error) {
	if err := checkThreads("threads", c.Threads); err != nil {
		return nil, err
	}
	isa, err := kernels.ParseISA(c.ISA)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--isa: %w", err)
	}
	threads := c.Threads
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	pool, err := kernels.NewPool(threads, isa)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--isa %s --threads %d: %w", c.ISA, threads, err)
	}
	return pool, nil
}

func resultOf(p measure.Product) kernelResult {
	macs := float64(p.Rows) * float64(p.Cols) * float64(p.Width)
	return kernelResult{
		Type: p.Type.String(), Rows: p.Rows, Cols: p.Cols, Width: p.Width,
		US: us(p.Best), LimitUS: us(p.Limit), Share: p.Share, MedianUS: us(p.Median), MedianShare: p.MedianShare,
		GBs: float64(p.Bytes) / p.Best.Seconds() / 1e9, MACs: macs / p.Best.Seconds() / 1e12,
	}
}

func (r benchKernelsResult) print(a *app) error {
	fmt.Fprintf(a.stdout, "%s, %d threads: %s (before: %s; after: %s)\n", r.ISA, r.Threads, r.Limits, r.Before, r.After)
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "type\touts × ins\trows\tµs\tlimit\tshare\tmedian µs\tmedian share\tGB/s\tGmac/s\t")
	for _, k := range r.Kernels {
		fmt.Fprintf(w, "%s\t%d × %d\t%d\t%.1f\t%.1f\t%.2f\t%.1f\t%.2f\t%.1f\t%.0f\t\n",
			k.Type, k.Rows, k.Cols, k.Width, k.US, k.LimitUS, k.Share, k.MedianUS, k.MedianShare, k.GBs, 1e3*k.MACs)
	}
	return w.Flush()
}

package bench

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/measure"
)

// streamedResult is what passes with streamed weights take, beside what the disk gives. Sizes are in bytes.
type streamedResult struct {
	Resident int64          `json:"resident_bytes"`
	Ring     int64          `json:"ring_bytes"`
	PerPass  int64          `json:"pass_bytes"`                 // that each pass reads; see kernels.StreamStats
	Experts  int64          `json:"expert_bytes,omitempty"`     // memory for experts
	All      int64          `json:"all_expert_bytes,omitempty"` // of all experts
	Row      int64          `json:"row_expert_bytes,omitempty"` // of those that a row uses
	Rate     float64        `json:"direct_read_gb_s"`
	Slowest  float64        `json:"direct_read_slowest_gb_s"`
	Passes   []streamedPass `json:"passes"`
	Layers   []expertLayer  `json:"layers,omitempty"` // with experts, in order
}

// expertLayer says where the experts of a layer were, of all passes together: see kernels.ExpertStats. Shares are of those that passes
// used.
type expertLayer struct {
	Used     int64   `json:"used"`
	Held     float64 `json:"held_share"` // in memory
	Foretold float64 `json:"foretold_share"`
	Missed   float64 `json:"missed_share"`
	Useful   float64 `json:"useful_share"` // of those that guesses read
	First    float64 `json:"first_right"`  // of recent guesses by the router one layer before: those of the likeliest expert
	Last     float64 `json:"last_right"`   // and of the last
}

func layersOf(all []kernels.ExpertStats) (layers []expertLayer) {
	for _, s := range all {
		n := float64(max(s.Used, 1))
		l := expertLayer{Used: s.Used, Held: float64(s.Used-s.Foretold-s.Missed) / n, Foretold: float64(s.Foretold) / n,
			Missed: float64(s.Missed) / n, Useful: float64(s.Foretold) / float64(max(s.Guessed, 1))}
		if k := len(s.Right); k > 0 {
			l.First, l.Last = s.Right[0], s.Right[k-1]
		}
		layers = append(layers, l)
	}
	return layers
}

type streamedPass struct {
	Width       int     `json:"width"`
	Context     int     `json:"context"`
	Prefill     bool    `json:"prefill,omitempty"`
	MS          float64 `json:"ms"` // median
	BestMS      float64 `json:"best_ms"`
	LimitMS     float64 `json:"limit_ms"`               // what a pass streams ÷ the rate of direct reads of the same file, median
	Share       float64 `json:"share"`                  // limit ÷ median
	MedianShare float64 `json:"median_share"`           // by the rate just before each pass
	WaitMS      float64 `json:"wait_ms"`                // for weights
	ExpertBytes float64 `json:"expert_bytes,omitempty"` // of experts that a pass read, on average
	Used        float64 `json:"experts_used,omitempty"` // by a pass, layer by layer
	DiskBusy    float64 `json:"disk_busy"`              // share of the pass
	PassesS     float64 `json:"passes_s"`               // by the median; for one row, tokens per second without drafts
}

// streamed is Run for a model whose weights are streamed.
func (d Decode) streamed(ctx context.Context, m *engine.Model, s kernels.Streamer) (*DecodeResult, error) {
	points := slices.DeleteFunc(d.points(), func(p measure.Point) bool { return !p.Prefill && p.Context != d.Context })
	found, err := measure.Streamed(ctx, m, s, points, d.Rounds)
	if err != nil {
		return nil, err
	}
	const gb = 1e9
	out := &streamedResult{Resident: found.Resident, Ring: found.Ring, PerPass: found.Streamed,
		Experts: found.Experts, All: found.AllExperts, Row: found.RowExperts}
	slices.Sort(found.Rates)
	if n := len(found.Rates); n > 0 {
		out.Rate, out.Slowest = found.Rates[n/2]/gb, found.Rates[0]/gb
	}
	for _, p := range found.Passes {
		out.Passes = append(out.Passes, streamedPass{Width: p.Rows, Context: p.Context, Prefill: p.Prefill,
			MS: figures.MS(p.Median()), BestMS: figures.MS(p.Best()), LimitMS: figures.MS(p.Limit), Share: p.Share,
			MedianShare: p.MedianShare, ExpertBytes: p.Experts, Used: p.Used,
			WaitMS: figures.MS(p.Waited), DiskBusy: p.Busy, PassesS: 1 / max(p.Median().Seconds(), 1e-9)})
	}
	r := &DecodeResult{Model: d.Name, ISA: m.About().Kernels, Threads: m.About().Threads, KVType: d.KVType,
		Weights: m.Passes().Work().Bytes, Streamed: out}
	return r, nil
}

func (r *DecodeResult) printStreamed(to io.Writer) error {
	s := r.Streamed
	fmt.Fprintf(to, "%s, %s, %d threads: %s of weights in memory, a ring of %s, %s read by each pass; direct reads give "+
		"%.2f GB/s (slowest %.2f)\n", r.Model, r.ISA, r.Threads, figures.MiB(s.Resident), figures.MiB(s.Ring),
		figures.MiB(s.PerPass), s.Rate, s.Slowest)
	if s.All > 0 {
		fmt.Fprintf(to, "%s of %s of experts have room in memory, a row uses %s\n", figures.MiB(s.Experts), figures.MiB(s.All),
			figures.MiB(s.Row))
	}
	t := figures.NewTable(to, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t%.1f")
	t.Head("rows", "context", "ms", "best", "limit", "share", "median share", "waiting ms", "disk busy", "passes/s", "experts",
		"MiB of them read")
	for _, p := range s.Passes {
		rows := fmt.Sprint(p.Width)
		if p.Prefill {
			rows = "prompt " + rows
		}
		t.Row(rows, p.Context, p.MS, p.BestMS, p.LimitMS, p.Share, p.MedianShare, p.WaitMS, p.DiskBusy, p.PassesS, p.Used,
			p.ExpertBytes/(1<<20))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(s.Layers) > 0 {
		fmt.Fprintln(to, "\nexperts that passes used, by layer: in memory, read by a guess, read once they were chosen; how many that "+
			"guesses read were used; how often the first and the last guess of the router before were right")
		t := figures.NewTable(to, "%d\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f")
		t.Head("layer", "used", "in memory", "foretold", "missed", "useful", "first", "last")
		for i, l := range s.Layers {
			t.Row(i, l.Used, l.Held, l.Foretold, l.Missed, l.Useful, l.First, l.Last)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return r.printOps(to)
}

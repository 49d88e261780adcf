package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/measure"
)

// Decode measures whole passes of a model by their width: T_V(W) beside its limit.
type Decode struct {
	Name    string // of the model
	Context int    // tokens before the rows of a pass
	Prefill int    // also measure a prompt of this many tokens; 0: none
	KVType  string
	Passes
	Guessing    measure.Guessing // also decode with chains, if there are any; Context is that of passes
	Draft       *engine.Model    // runs a pass for each guess of a chain, so that guesses take time; nil: they take none
	ByOperation bool             // also time the operations of Rounds further passes of each kind
}

// passResult is one kind of pass.
type passResult struct {
	Width       int     `json:"width"`
	Context     int     `json:"context"`
	Prefill     bool    `json:"prefill,omitempty"` // the rows are a prompt
	MS          float64 `json:"ms"`                // of the best pass: T_V(width)
	LimitMS     float64 `json:"limit_ms"`          // reading the weights or the multiply-adds, the larger; of a prompt with attention
	Share       float64 `json:"share"`
	MedianMS    float64 `json:"median_ms"`
	MedianShare float64 `json:"median_share"`      // of the limits just before each pass
	Spread      float64 `json:"spread"`            // between the tenth and the ninetieth of 100 passes, as a share of the median
	MACShare    float64 `json:"mac_share"`         // of the peak multiply-add rate
	Experts     int     `json:"experts,omitempty"` // that the pass used, counted layer by layer
	KVBytes     int64   `json:"kv_bytes"`
	KVLimitMS   float64 `json:"kv_limit_ms"`     // reading keys and values once; not part of limit_ms
	KVRatio     float64 `json:"kv_ratio"`        // (ms − limit_ms) ÷ kv_limit_ms: what the context costs at most
	AttentionMS float64 `json:"attention_ms"`    // what the pass takes longer than with a context of one token
	Attention   float64 `json:"attention_share"` // of the pass
}

// DecodeResult is the result of Decode: what the command prints as JSON or as text.
type DecodeResult struct {
	Model   string       `json:"model"`
	ISA     string       `json:"isa"`
	Threads int          `json:"threads"`
	KVType  string       `json:"kv_type"`
	Weights int64        `json:"weight_bytes"` // that a pass reads
	Limits  Limits       `json:"limits"`       // the best of the run
	Before  Limits       `json:"limits_before"`
	After   Limits       `json:"limits_after"`
	Passes  []passResult `json:"passes"`
	Ops     []passOps    `json:"by_operation,omitempty"`

	Chains []chainResult `json:"chains,omitempty"` // the first is plain decoding

	Streamed *streamedResult `json:"streamed,omitempty"` // in place of limits and passes, if weights are streamed
}

// passOps is where the time of one kind of pass goes.
type passOps struct {
	Width    int       `json:"width"`
	Context  int       `json:"context"`
	Prefill  bool      `json:"prefill,omitempty"`
	MS       float64   `json:"ms"`           // mean of the passes
	Matrices float64   `json:"matrix_share"` // of the threads' time, spent on products with weights
	Idle     []float64 `json:"idle_share"`   // of each thread's time, spent on no operation: waiting, and starting and ending the pass
	Ops      []opTime  `json:"operations"`
}

// opTime is the mean time of one kind of operation in a pass.
type opTime struct {
	Kind   string    `json:"kind"`
	BusyMS float64   `json:"busy_ms"` // mean of the threads
	Share  float64   `json:"share"`   // of the threads' time
	WaitMS []float64 `json:"wait_ms"` // of each thread, for the others to end it
}

// Options returns the options with which the model must be opened: buffers and KV memory for the passes. context is the model's, in tokens.
// The caller adds the device. Errors: Invalid, in the words of the command line.
func (d Decode) Options(context int) (engine.Options, error) {
	if err := d.Passes.Validate(); err != nil {
		return engine.Options{}, err
	}
	if d.Context < 1 || d.Context > context || d.Prefill < 0 || d.Prefill > context {
		return engine.Options{}, tandem.Errorf("", tandem.Invalid, "--context %d --prefill %d: %s has a context of %d tokens",
			d.Context, d.Prefill, d.Name, context)
	}
	widest, pages := max(slices.Max(d.Widths), d.widestChain()), measure.Pages(d.points())
	if g := d.Guessing; len(g.Chains) > 0 {
		g.Context = d.Context
		if err := checkGuessing(g); err != nil {
			return engine.Options{}, err
		}
		if g.Context+g.Tokens > context {
			return engine.Options{}, tandem.Errorf("", tandem.Invalid, "--context %d --tokens %d: %s has a context of %d tokens", g.Context,
				g.Tokens, d.Name, context)
		}
		pages += g.Pages()
	}
	return engine.Options{KVType: d.KVType, MaxRows: max(256, widest), MaxWanted: widest, KVPages: pages}, nil
}

// Run measures passes of m, which was opened with Options and which nothing else uses meanwhile. Errors: those of the model, and ctx's.
func (d Decode) Run(ctx context.Context, m *engine.Model) (*DecodeResult, error) {
	var r *DecodeResult
	var err error
	if s, ok := m.Passes().Streamer(); ok && s.StreamStats().Streamed > 0 {
		r, err = d.streamed(ctx, m, s)
	} else {
		r, err = d.resident(ctx, m)
	}
	if err == nil {
		err = d.byOperation(ctx, m, r)
	}
	if err == nil {
		err = d.chains(ctx, m, r)
	}
	if s, ok := m.Passes().Streamer(); ok && err == nil && r.Streamed != nil {
		r.Streamed.Layers = layersOf(s.StreamStats().Layers)
	}
	return r, err
}

func (d Decode) resident(ctx context.Context, m *engine.Model) (*DecodeResult, error) {
	found, err := measure.Decode(ctx, m, d.points(), d.Rounds)
	if err != nil {
		return nil, err
	}
	r := &DecodeResult{
		Model: d.Name, ISA: m.About().Kernels, Threads: m.About().Threads, KVType: d.KVType, Weights: m.Passes().Work().Bytes,
		Limits: LimitsOf(found.Limits), Before: LimitsOf(found.Before), After: LimitsOf(found.After),
	}
	for i := range found.Passes {
		if p := &found.Passes[i]; p.Prefill || p.Context == d.Context {
			r.Passes = append(r.Passes, passOf(p, found.Passes))
		}
	}
	return r, nil
}

// byOperation adds where the time goes, if that is wanted.
func (d Decode) byOperation(ctx context.Context, m *engine.Model, r *DecodeResult) error {
	if !d.ByOperation {
		return nil
	}
	points := slices.DeleteFunc(d.points(), func(p measure.Point) bool { return !p.Prefill && p.Context != d.Context })
	broken, err := measure.Operations(ctx, m, points, d.Rounds)
	for i := range broken {
		r.Ops = append(r.Ops, opsOf(&broken[i]))
	}
	return err
}

// opsOf returns means of the passes of b.
func opsOf(b *measure.Breakdown) passOps {
	mean := func(d time.Duration) float64 { return figures.MS(d) / float64(b.Passes) }
	r := passOps{Width: b.Rows, Context: b.Context, Prefill: b.Prefill, MS: mean(b.Total), Matrices: b.Matrices()}
	for _, o := range b.Ops {
		t := opTime{Kind: o.Kind}
		if r.Idle == nil {
			r.Idle = slices.Repeat([]float64{1}, len(o.Busy))
		}
		for i, busy := range o.Busy {
			t.BusyMS += mean(busy) / float64(len(o.Busy))
			t.WaitMS = append(t.WaitMS, mean(o.Wait[i]))
			r.Idle[i] -= figures.Share(mean(busy), r.MS)
		}
		t.Share = figures.Share(t.BusyMS, r.MS)
		r.Ops = append(r.Ops, t)
	}
	return r
}

// points returns the kinds of passes: each width with the context, and with next to none.
func (d Decode) points() (points []measure.Point) {
	for _, w := range d.Widths {
		points = append(points, measure.Point{Rows: w, Context: d.Context})
		if d.Context > 1 {
			points = append(points, measure.Point{Rows: w, Context: 1})
		}
	}
	if d.Prefill > 0 {
		points = append(points, measure.Point{Rows: d.Prefill, Prefill: true})
	}
	return points
}

// passOf compares p with the pass of the same width and next to no context.
func passOf(p *measure.Pass, all []measure.Pass) passResult {
	ms := figures.MS
	r := passResult{
		Width: p.Rows, Context: p.Context, Prefill: p.Prefill,
		MS: ms(p.Best()), LimitMS: ms(p.Limit), Share: p.Share, MedianMS: ms(p.Median()), MedianShare: p.MedianShare, Spread: p.Spread(),
		MACShare: p.MACShare, Experts: p.Experts,
		KVBytes: p.KVBytes, KVLimitMS: ms(p.KVLimit), KVRatio: figures.Share(ms(p.Best()-p.Limit), ms(p.KVLimit)),
	}
	for i := range all {
		if q := &all[i]; !p.Prefill && !q.Prefill && q.Rows == p.Rows && q.Context < p.Context {
			r.AttentionMS = max(0, ms(p.Median()-q.Median()))
			r.Attention = figures.Share(r.AttentionMS, r.MedianMS)
		}
	}
	return r
}

// Print writes the result as text.
func (r *DecodeResult) Print(to io.Writer) error {
	if r.Streamed != nil {
		return r.printStreamed(to)
	}
	fmt.Fprintf(to, "%s, %s, %d threads, %s of weights a pass, %s cache: %s (before: %s; after: %s)\n",
		r.Model, r.ISA, r.Threads, figures.MiB(r.Weights), r.KVType, r.Limits, r.Before, r.After)
	t := figures.NewTable(to, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f")
	t.Head("rows", "context", "ms", "limit", "share", "median ms", "median share", "spread", "KV ms", "attention ms", "of peak")
	for _, p := range r.Passes {
		rows := fmt.Sprint(p.Width)
		if p.Prefill {
			rows = "prompt " + rows
		}
		t.Row(rows, p.Context, p.MS, p.LimitMS, p.Share, p.MedianMS, p.MedianShare, p.Spread, p.KVLimitMS, p.AttentionMS, p.MACShare)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range r.Passes {
		if p.Experts > 0 {
			fmt.Fprintf(to, "%d rows, context %d: %d experts read, counted layer by layer\n", p.Width, p.Context, p.Experts)
		}
	}
	return r.printOps(to)
}

func (r *DecodeResult) printOps(to io.Writer) error {
	for i := range r.Ops {
		if err := r.Ops[i].print(to); err != nil {
			return err
		}
	}
	return r.printChains(to)
}

// print writes where the time of a kind of pass goes.
func (p *passOps) print(to io.Writer) error {
	rows := fmt.Sprintf("%d rows, context %d", p.Width, p.Context)
	if p.Prefill {
		rows = fmt.Sprintf("a prompt of %d", p.Width)
	}
	fmt.Fprintf(to, "\n%s: %.2f ms, %.2f of it products with weights; idle by thread: %.2f\n", rows, p.MS, p.Matrices, p.Idle)
	t := figures.NewTable(to, "%s\t%.3f\t%.3f\t%.3f")
	t.Head("operation", "ms", "share", "waiting ms by thread")
	for _, o := range p.Ops {
		t.Row(o.Kind, o.BusyMS, o.Share, o.WaitMS)
	}
	return t.Flush()
}

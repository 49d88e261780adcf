package main

import (
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/measure"
)

type benchDecodeCmd struct {
	Model   string `help:"GGUF file (default: the shipped target)." placeholder:"FILE" setting:"-"`
	Context int    `help:"Tokens before the rows of a pass." default:"256" setting:"-"`
	Prefill int    `help:"Measure a prompt of so many tokens in one pass too; 0 = none." default:"0" placeholder:"N" setting:"-"`
	widthFlags
	computeFlags
	kvFlags
	output
}

// passResult is one kind of pass.
type passResult struct {
	Width       int     `json:"width"`
	Context     int     `json:"context"`
	Prefill     bool    `json:"prefill,omitempty"` // the rows are a prompt
	MS          float64 `json:"ms"`                // of the best pass: T_V(width)
	LimitMS     float64 `json:"limit_ms"`          // reading the weights or the multiply-adds, the larger
	Share       float64 `json:"share"`
	MedianMS    float64 `json:"median_ms"`
	MedianShare float64 `json:"median_share"` // of the limits just before each pass
	Spread      float64 `json:"spread"`       // between the tenth and the ninetieth of 100 passes, as a share of the median
	MACShare    float64 `json:"mac_share"`    // of the peak multiply-add rate
	KVBytes     int64   `json:"kv_bytes"`
	KVLimitMS   float64 `json:"kv_limit_ms"`     // reading keys and values once; not part of limit_ms
	KVRatio     float64 `json:"kv_ratio"`        // (ms − limit_ms) ÷ kv_limit_ms: what the context costs at most
	AttentionMS float64 `json:"attention_ms"`    // what the pass takes longer than with a context of one token
	Attention   float64 `json:"attention_share"` // of the pass
}

type benchDecodeResult struct {
	Model   string       `json:"model"`
	ISA     string       `json:"isa"`
	Threads int          `json:"threads"`
	KVType  string       `json:"kv_type"`
	Weights int64        `json:"weight_bytes"` // that a pass reads
	Limits  limitsResult `json:"limits"`       // the best of the run
	Before  limitsResult `json:"limits_before"`
	After   limitsResult `json:"limits_after"`
	Passes  []passResult `json:"passes"`
}

// Run measures whole passes.
func (c *benchDecodeCmd) Run(a *app) error {
	path, points, err := c.points()
	if err != nil {
		return err
	}
	o := engine.Options{Threads: c.Threads, ISA: c.ISA, KVType: c.KVType, MaxRows: max(256, slices.Max(c.Width), c.Prefill), MaxWanted: slices.Max(c.Width),
		KVPages: measure.Pages(points)}
	m, err := a.openModel(path, o)
	if err != nil {
		return err
	}
	defer m.Close()
	d, err := measure.Decode(a.ctx, m, points, c.Rounds)
	if err != nil {
		return err
	}
	r := benchDecodeResult{
		Model: modelName(path), ISA: m.ISA().String(), Threads: m.Threads(), KVType: c.KVType, Weights: m.Work().Bytes,
		Limits: limitsOf(d.Limits), Before: limitsOf(d.Before), After: limitsOf(d.After),
	}
	for i := range d.Passes {
		if p := &d.Passes[i]; p.Prefill || p.Context == c.Context {
			r.Passes = append(r.Passes, c.result(p, d.Passes))
		}
	}
	if c.JSON {
		return printJSON(a.stdout, r)
	}
	return r.print(a)
}

// points checks the flags and returns the kinds of passes: each width with the context, and with next to
// none.
func (c *benchDecodeCmd) points() (path string, points []measure.Point, err error) {
	if err := c.widthFlags.check(); err != nil {
		return "", nil, err
	}
	if err := checkThreads("threads", c.Threads); err != nil {
		return "", nil, err
	}
	if path, err = targetPath(c.Model); err != nil {
		return "", nil, err
	}
	info, err := engine.Inspect(path)
	if err != nil {
		return "", nil, err
	}
	most := info.Config.Context
	if c.Context < 1 || c.Context > most || c.Prefill < 0 || c.Prefill > min(most, 4096) {
		return "", nil, tandem.Errorf("", tandem.Invalid, "--context %d --prefill %d: %s has a context of %d tokens", c.Context, c.Prefill, modelName(path), most)
	}
	for _, w := range c.Width {
		points = append(points, measure.Point{Rows: w, Context: c.Context})
		if c.Context > 1 {
			points = append(points, measure.Point{Rows: w, Context: 1})
		}
	}
	if c.Prefill > 0 {
		points = append(points, measure.Point{Rows: c.Prefill, Prefill: true})
	}
	return path, points, nil
}

// result compares p with the pass of the same width and next to no context.
func (c *benchDecodeCmd) result(p *measure.Pass, all []measure.Pass) passResult {
	r := passResult{
		Width: p.Rows, Context: p.Context, Prefill: p.Prefill,
		MS: ms(p.Best()), LimitMS: ms(p.Limit), Share: p.Share, MedianMS: ms(p.Median()), MedianShare: p.MedianShare, Spread: p.Spread(),
		MACShare: p.MACShare, KVBytes: p.KVBytes, KVLimitMS: ms(p.KVLimit), KVRatio: share(ms(p.Best()-p.Limit), ms(p.KVLimit)),
	}
	for i := range all {
		if q := &all[i]; !p.Prefill && !q.Prefill && q.Rows == p.Rows && q.Context < p.Context {
			r.AttentionMS = max(0, ms(p.Median()-q.Median()))
			r.Attention = share(r.AttentionMS, r.MedianMS)
		}
	}
	return r
}

func (r benchDecodeResult) print(a *app) error {
	fmt.Fprintf(a.stdout, "%s, %s, %d threads, %s of weights a pass, %s cache: %s (before: %s; after: %s)\n",
		r.Model, r.ISA, r.Threads, mib(r.Weights), r.KVType, r.Limits, r.Before, r.After)
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "rows\tcontext\tms\tlimit\tshare\tmedian ms\tmedian share\tspread\tKV ms\tattention ms\tof peak\t")
	for _, p := range r.Passes {
		rows := fmt.Sprint(p.Width)
		if p.Prefill {
			rows = "prompt " + rows
		}
		fmt.Fprintf(w, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n",
			rows, p.Context, p.MS, p.LimitMS, p.Share, p.MedianMS, p.MedianShare, p.Spread, p.KVLimitMS, p.AttentionMS, p.MACShare)
	}
	return w.Flush()
}

// Package devices measures a draft and a target on several devices, and whole tandems that place them differently, in one run: that all
// give the same bits and ids, how close a draft's step comes to its limit, tokens per second, and what drafting ahead brings.
package devices

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/app/bench/prompts"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/lab/passes"
	"github.com/tandem-llm/tandem/processes/measure"
)

// Config says what to measure.
type Config struct {
	Target, Draft string   // paths
	Reference     string   // the device with whose bits all are compared
	Devices       []string // that are compared; of the first the draft's step is measured
	Contexts      []int    // tokens before compared passes; before a draft's step the largest
	Steps         int      // passes of a draft's step
	Places        []Place  // the first one's ids are those that all must have
	Prompts       []prompts.Prompt
	Plain         tandem.Request // decoding without drafts; its prompt is filled in
	Speculating   tandem.Request // the same with drafts
	Repeat        int            // how often each prompt is run

	// Open opens a model on a device. closed closes both.
	Open func(device, path string, o engine.Options) (m *engine.Model, closed func(), err error)
	// Start starts the processes of a place, calls do with them, and ends them. do's ctx also ends when a process is gone.
	Start func(p Place, do func(context.Context, Processes) error) error
}

// Place says what computes where in a tandem.
type Place struct {
	Name  string
	Flags string // that say so
	Ahead bool   // the drafts have a processor of their own: drafting ahead is measured, and has a bar
}

// Processes are a gateway and what is behind it.
type Processes interface {
	// Generate runs r to its end and hands the tokens on as they come.
	Generate(ctx context.Context, r tandem.Request, heard func([]tandem.Token)) (tandem.Result, error)
}

// Bars.
const (
	stepBar  = 1.5 // a draft's step over its limit, at most
	aheadBar = 0.9 // what drafting ahead brings, of its bound, at least
	// a lower bound says nothing: noise is as large
	aheadMatters = 1.05
)

// Result is the result of Run. What could not be measured says why.
type Result struct {
	Target    string        `json:"target"`
	Draft     string        `json:"draft"`
	Reference string        `json:"reference"`
	Bits      []bitsResult  `json:"bits"`
	Step      *stepResult   `json:"draft_step,omitempty"`
	Places    []placeResult `json:"places"`
	Differ    []string      `json:"differ,omitempty"` // where bits or ids are not the same
	Missed    []string      `json:"missed,omitempty"` // bars
	Failed    []string      `json:"failed,omitempty"` // what could not be measured
}

// bitsResult is one model on one device beside the reference.
type bitsResult struct {
	Device  string `json:"device"`
	Model   string `json:"model"`
	Passes  int    `json:"passes"`
	Rows    int    `json:"rows"`
	Numbers int64  `json:"numbers"` // compared
	Equal   bool   `json:"equal"`
}

// stepResult is the draft's step on the first device.
type stepResult struct {
	Device   string  `json:"device"`
	Context  int     `json:"context"`
	MS       float64 `json:"ms"` // median
	BestMS   float64 `json:"best_ms"`
	ReadMS   float64 `json:"read_ms"`
	ReadGBS  float64 `json:"read_gb_s"`
	Launches int     `json:"launches"` // 0: the device cannot tell
	EmptyMS  float64 `json:"empty_ms"`
	LimitMS  float64 `json:"limit_ms"`
	Times    float64 `json:"times_limit"`
}

// Run measures. What fails is part of the result; the error is that of ctx, or says that the configuration is wrong.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	r := &Result{Target: nameOf(c.Target), Draft: nameOf(c.Draft), Reference: c.Reference}
	for _, path := range []string{c.Target, c.Draft} {
		if err := r.bits(ctx, &c, path); err != nil {
			return r, err
		}
	}
	if len(c.Devices) > 0 {
		if err := r.fail(ctx, "the draft's step on "+c.Devices[0], r.step(ctx, &c)); err != nil {
			return r, err
		}
	}
	var ids truth
	for _, p := range c.Places {
		row := placeResult{Name: p.Name, Flags: p.Flags}
		err := c.Start(p, func(ctx context.Context, processes Processes) error { return row.run(ctx, &c, p, processes, &ids) })
		if err != nil {
			row.Error = err.Error()
		}
		if err := r.fail(ctx, p.Name, err); err != nil {
			return r, err
		}
		r.Places = append(r.Places, row)
		switch a := row.Ahead; {
		case a == nil || !p.Ahead:
		case a.Bound < aheadMatters:
			r.Failed = append(r.Failed, fmt.Sprintf("%s: drafting ahead can bring %.3f at most: take a larger draft", p.Name, a.Bound))
		case a.Share < aheadBar:
			r.Missed = append(r.Missed, fmt.Sprintf("%s: drafting ahead reaches %.2f of its bound, want %.2f", p.Name, a.Share, aheadBar))
		}
	}
	r.Differ = append(r.Differ, ids.differ...)
	return r, nil
}

func nameOf(path string) string { return strings.TrimSuffix(filepath.Base(path), ".gguf") }

func (c *Config) check() error {
	switch {
	case len(c.Contexts) == 0 || slices.Min(c.Contexts) < 1:
		return tandem.Errorf("", tandem.Invalid, "--context %v: want one or more, of at least 1 token", c.Contexts)
	case c.Steps < 1 || c.Repeat < 1:
		return tandem.Errorf("", tandem.Invalid, "--rounds %d --repeat %d: want at least 1 of each", c.Steps, c.Repeat)
	case len(c.Prompts) == 0 && len(c.Places) > 0:
		return tandem.Errorf("", tandem.Invalid, "no prompts for %d placements", len(c.Places))
	}
	return nil
}

// fail notes what could not be measured; it returns the error of ctx if that has ended.
func (r *Result) fail(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		r.Failed = append(r.Failed, what+": "+err.Error())
	}
	return nil
}

// bits compares a model on all devices with the reference.
func (r *Result) bits(ctx context.Context, c *Config, path string) error {
	if len(c.Devices) == 0 {
		return nil
	}
	name, o := nameOf(path), passes.CompareOptions(c.Contexts)
	want, closeWant, err := c.Open(c.Reference, path, o)
	if err != nil {
		return r.fail(ctx, name+" on "+c.Reference, err)
	}
	defer closeWant()
	for _, d := range c.Devices {
		row := bitsResult{Device: d, Model: name}
		got, closed, err := c.Open(d, path, o)
		if err == nil {
			var found *passes.Compared
			found, err = passes.Compare(ctx, want, got, c.Contexts)
			closed()
			row.Passes, row.Rows, row.Numbers, row.Equal = found.Passes, found.Rows, found.Numbers, err == nil && len(found.Differ) == 0
			for _, at := range found.Differ {
				r.Differ = append(r.Differ, fmt.Sprintf("%s on %s: %s", name, d, at))
			}
		}
		if err := r.fail(ctx, name+" on "+d, err); err != nil {
			return err
		}
		r.Bits = append(r.Bits, row)
	}
	return nil
}

// step measures the draft's step.
func (r *Result) step(ctx context.Context, c *Config) error {
	context := slices.Max(c.Contexts)
	m, closed, err := c.Open(c.Devices[0], c.Draft, engine.Options{MaxRows: 64,
		KVPages: measure.Pages([]measure.Point{{Rows: 1, Context: context}})})
	if err != nil {
		return err
	}
	defer closed()
	s, err := passes.MeasureStep(ctx, m, context, c.Steps)
	if err != nil {
		return err
	}
	r.Step = &stepResult{Device: c.Devices[0], Context: context, MS: figures.MS(s.Median), BestMS: figures.MS(s.Best),
		ReadMS: figures.MS(s.Read), ReadGBS: s.ReadBytes / 1e9, Launches: s.Launches, EmptyMS: figures.MS(s.Empty),
		LimitMS: figures.MS(s.Limit()), Times: figures.Share(float64(s.Median), float64(s.Limit()))}
	if s.Launches > 0 && r.Step.Times > stepBar {
		r.Missed = append(r.Missed, fmt.Sprintf("the draft's step on %s takes %.2f times its limit, want %.1f at most", r.Step.Device,
			r.Step.Times, stepBar))
	}
	return nil
}

// Err returns what is wrong with the result: first what is not the same, then what could not be measured, then missed bars.
func (r *Result) Err() error {
	switch {
	case len(r.Differ) > 0:
		return fmt.Errorf("not the same bits: %s", strings.Join(r.Differ, "; "))
	case len(r.Failed) > 0:
		return errors.New("not measured: " + strings.Join(r.Failed, "; "))
	case len(r.Missed) > 0:
		return errors.New("bars missed: " + strings.Join(r.Missed, "; "))
	}
	return nil
}

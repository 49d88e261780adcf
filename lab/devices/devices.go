// Package devices measures a draft and a target on several devices, and whole tandems that place them differently, in one run: that all
// give the same bits and ids, how close a draft's step comes to its limit, tokens per second, and what drafting ahead brings.
package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/app/bench/prompts"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/replay"
	"github.com/tandem-llm/tandem/lab/passes"
	"github.com/tandem-llm/tandem/processes/measure"
)

// Config says what to measure.
type Config struct {
	Target, Draft string   // paths
	Reference     string   // the device with whose bits all are compared
	Devices       []string // that are compared; of the first the draft's step is measured
	Contexts      []int    // tokens before compared passes; before a draft's step, and before passes of Widths, the largest
	Steps         int      // passes of a draft's step
	Widths        []int    // rows of the target's passes that are measured on all devices; none: they are not
	Rounds        int      // how many of each
	Places        []Place  // the first one's ids are those that all must have
	Prompts       []prompts.Prompt
	Plain         tandem.Request // decoding without drafts; its prompt is filled in
	Speculating   tandem.Request // the same with drafts
	Repeat        int            // how often each prompt is run
	Until         time.Time      // what would end later is skipped; zero: nothing is
	Save          string         // folder for what differs; "": it is not saved
	Energy        *Energy        // nil: it is not measured
	Progress      func(*Result)  // called after each part; may be nil

	// Open opens a model on a device. closed closes both.
	Open func(device, path string, o engine.Options) (m *engine.Model, closed func(), err error)
	// Beside is Open for a model that computes on the Reference, and beside it on a device: see replay.Beside.
	Beside func(device, path string, o engine.Options, found func(*replay.Record, error)) (m *engine.Model, closed func(), err error)
	// Start starts the processes of a place, calls do with them, and ends them. do's ctx also ends when a process is gone.
	Start func(ctx context.Context, p Place, do func(context.Context, Processes) error) error
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
	Passes    []passResult  `json:"passes,omitempty"` // of the target
	Places    []placeResult `json:"places"`
	Differ    []string      `json:"differ,omitempty"`  // where bits or ids are not the same
	Saved     []string      `json:"saved,omitempty"`   // files of what differs
	Missed    []string      `json:"missed,omitempty"`  // bars
	Failed    []string      `json:"failed,omitempty"`  // what could not be measured
	Absent    []string      `json:"absent,omitempty"`  // pairs of devices that cannot be had here
	Skipped   []string      `json:"skipped,omitempty"` // for lack of time
	Meters    []string      `json:"meters,omitempty"`  // of energy
	NoMeters  []string      `json:"no_meters,omitempty"`
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
	ChainMS  float64 `json:"chain_ms,omitempty"` // a row of passes.ChainRows that the device runs at once; 0: it has no chains
}

// passResult is the target's passes of one width on a device.
type passResult struct {
	Device   string    `json:"device"`
	Rows     int       `json:"rows"`
	MS       float64   `json:"ms"` // median
	BestMS   float64   `json:"best_ms"`
	LimitMS  float64   `json:"limit_ms"`         // reading weights, or multiply-adds
	Share    float64   `json:"share"`            // of the limit
	Launches int       `json:"launches"`         // 0: the device cannot tell
	Joules   []float64 `json:"joules,omitempty"` // a pass, by each source of Config.Energy
}

// Run measures. What fails is part of the result; the error is that of ctx, or says that the configuration is wrong.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	r := &Result{Target: nameOf(c.Target), Draft: nameOf(c.Draft), Reference: c.Reference}
	if c.Energy != nil {
		r.Meters, r.NoMeters = c.Energy.Names, c.Energy.Absent
	}
	var parts []part
	for _, path := range []string{c.Target, c.Draft} {
		for _, d := range c.Devices {
			parts = append(parts, part{nameOf(path) + " on " + d, d, func(ctx context.Context) error { return r.bits(ctx, &c, path, d) }})
		}
	}
	if len(c.Devices) > 0 {
		parts = append(parts, part{"the draft's step on " + c.Devices[0], "", func(ctx context.Context) error { return r.step(ctx, &c) }})
	}
	if len(c.Widths) > 0 {
		for _, d := range append(slices.Clone(c.Devices), c.Reference) {
			parts = append(parts, part{"passes on " + d, d, func(ctx context.Context) error { return r.passes(ctx, &c, d) }})
		}
	}
	var ids truth
	for _, p := range c.Places {
		parts = append(parts, part{p.Name, p.Flags, func(ctx context.Context) error { return r.place(ctx, &c, p, &ids) }})
	}
	for _, p := range parts {
		if err := r.run(ctx, &c, p); err != nil {
			return r, err
		}
		r.differ(&ids)
		if c.Progress != nil {
			c.Progress(r)
		}
	}
	return r, nil
}

// part is something that is measured by itself, on a device or with devices named in flags.
type part struct {
	name, devices string
	measure       func(ctx context.Context) error
}

// run measures a part and notes what became of it; it returns the error of ctx if that has ended.
func (r *Result) run(ctx context.Context, c *Config, p part) error {
	within, release := ctx, func() {}
	if !c.Until.IsZero() {
		within, release = context.WithDeadline(ctx, c.Until)
	}
	defer release()
	err := within.Err()
	if err == nil {
		err = p.measure(within)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case within.Err() != nil:
		r.Skipped = append(r.Skipped, p.name)
	case err != nil && strings.Contains(p.devices, "+"):
		r.Absent = append(r.Absent, p.name+": "+err.Error())
	case err != nil:
		r.Failed = append(r.Failed, p.name+": "+err.Error())
	}
	return nil
}

// place runs a placement.
func (r *Result) place(ctx context.Context, c *Config, p Place, ids *truth) error {
	row := placeResult{Name: p.Name, Flags: p.Flags}
	err := c.Start(ctx, p, func(ctx context.Context, processes Processes) error { return row.run(ctx, c, p, processes, ids) })
	if err != nil {
		row.Error = err.Error()
	}
	r.Places = append(r.Places, row)
	switch a := row.Ahead; {
	case a == nil || !p.Ahead:
	case a.Bound < aheadMatters:
		r.Failed = append(r.Failed, fmt.Sprintf("%s: drafting ahead can bring %.3f at most: take a larger draft", p.Name, a.Bound))
	case a.Share < aheadBar:
		r.Missed = append(r.Missed, fmt.Sprintf("%s: drafting ahead reaches %.2f of its bound, want %.2f", p.Name, a.Share, aheadBar))
	}
	return err
}

// differ takes over which ids are not the same.
func (r *Result) differ(ids *truth) {
	r.Differ = append(r.Differ, ids.differ...)
	ids.differ = nil
}

func nameOf(path string) string { return strings.TrimSuffix(filepath.Base(path), ".gguf") }

func (c *Config) check() error {
	switch {
	case len(c.Contexts) == 0 || slices.Min(c.Contexts) < 1:
		return tandem.Errorf("", tandem.Invalid, "--context %v: want one or more, of at least 1 token", c.Contexts)
	case len(c.Widths) > 0 && (c.Rounds < 1 || slices.Min(c.Widths) < 1 || slices.Max(c.Widths) > 64):
		return tandem.Errorf("", tandem.Invalid, "--width %v, %d of each: want 1 to 64 rows, at least once", c.Widths, c.Rounds)
	case c.Steps < 1 || c.Repeat < 1:
		return tandem.Errorf("", tandem.Invalid, "--rounds %d --repeat %d: want at least 1 of each", c.Steps, c.Repeat)
	case len(c.Prompts) == 0 && len(c.Places) > 0:
		return tandem.Errorf("", tandem.Invalid, "no prompts for %d placements", len(c.Places))
	}
	return nil
}

// bits compares a model on a device with the reference.
func (r *Result) bits(ctx context.Context, c *Config, path, device string) error {
	name, o := nameOf(path), passes.CompareOptions(c.Contexts)
	row := bitsResult{Device: device, Model: name}
	want, closeWant, err := c.Open(c.Reference, path, o)
	if err != nil {
		return err
	}
	defer closeWant()
	got, closed, err := c.Open(device, path, o)
	if err == nil {
		var found *passes.Compared
		found, err = passes.Compare(ctx, want, got, c.Contexts)
		closed()
		row.Passes, row.Rows, row.Numbers, row.Equal = found.Passes, found.Rows, found.Numbers, err == nil && len(found.Differ) == 0
		for _, at := range found.Differ {
			r.Differ = append(r.Differ, fmt.Sprintf("%s on %s: %s", name, device, at))
		}
		if len(found.Differ) > 0 && c.Save != "" {
			r.save(ctx, c, want, path, device)
		}
	}
	r.Bits = append(r.Bits, row)
	return err
}

// saveTime is for finding an operation that gives other bits.
const saveTime = 30 * time.Second

// save finds the first operation of which the device gives other bits, and saves it.
func (r *Result) save(ctx context.Context, c *Config, want *engine.Model, path, device string) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), saveTime) // also if there is no time for anything else
	defer done()
	what, saved := nameOf(path)+" on "+device, ""
	m, closed, err := c.Beside(device, path, passes.CompareOptions(c.Contexts), func(x *replay.Record, failed error) {
		defer done()
		saved = filepath.Join(c.Save, fmt.Sprintf("%s-%s.wrong", nameOf(path), strings.NewReplacer(":", "", "+", "-").Replace(device)))
		if failed = errors.Join(failed, os.Remove(saved)); errors.Is(failed, os.ErrNotExist) {
			failed = nil
		}
		if failed == nil {
			failed = x.Save(saved)
		}
		if failed != nil {
			r.Failed = append(r.Failed, fmt.Sprintf("%s: %s: not saved: %v", what, x.What, failed))
			return
		}
		r.Saved = append(r.Saved, fmt.Sprintf("%s: %s, %s", saved, what, x.What))
	})
	if err == nil {
		_, err = passes.Compare(ctx, want, m, c.Contexts)
		closed()
	}
	switch {
	case saved != "":
	case ctx.Err() != nil:
		r.Failed = append(r.Failed, fmt.Sprintf("%s: %v did not suffice to find the operation that gives other bits, so nothing is saved",
			what, saveTime))
	default:
		r.Failed = append(r.Failed, fmt.Sprintf("%s: no single operation gives other bits, so nothing is saved (%v)", what, err))
	}
}

// step measures the draft's step.
func (r *Result) step(ctx context.Context, c *Config) error {
	context := slices.Max(c.Contexts)
	m, closed, err := c.Open(c.Devices[0], c.Draft, engine.Options{MaxRows: 64,
		KVPages: measure.Pages([]measure.Point{{Rows: passes.ChainRows, Context: context}})})
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
		LimitMS: figures.MS(s.Limit()), Times: figures.Share(float64(s.Median), float64(s.Limit())),
		ChainMS: figures.MS(s.Chained)}
	if s.Launches > 0 && r.Step.Times > stepBar {
		r.Missed = append(r.Missed, fmt.Sprintf("the draft's step on %s takes %.2f times its limit, want %.1f at most", r.Step.Device,
			r.Step.Times, stepBar))
	}
	return nil
}

// passes measures the target's passes on a device.
func (r *Result) passes(ctx context.Context, c *Config, device string) error {
	var points []measure.Point
	for _, n := range c.Widths {
		points = append(points, measure.Point{Rows: n, Context: slices.Max(c.Contexts)})
	}
	m, closed, err := c.Open(device, c.Target, engine.Options{MaxRows: measure.PieceRows, KVPages: measure.Pages(points)})
	if err != nil {
		return err
	}
	defer closed()
	for i := range points { // each width alone, so that launches and energy are its own
		d, err := measure.Decode(ctx, m, points[i:i+1], c.Rounds)
		if err != nil {
			return err
		}
		p := &d.Passes[0]
		row := passResult{Device: device, Rows: p.Rows, MS: figures.MS(p.Median()), BestMS: figures.MS(p.Best()),
			LimitMS: figures.MS(p.Limit), Share: p.Share}
		if row.Launches, _, err = m.Passes().LeastTime(1); err != nil {
			return err
		}
		if c.Energy != nil {
			var before []float64 // the first measured pass
			timings, err := measure.Passes(ctx, m, points[i:i+1], c.Rounds, func(int, time.Duration) error {
				if before == nil {
					before = c.Energy.Joules()
				}
				return nil
			})
			if err != nil {
				return err
			}
			row.Joules = c.Energy.since(before, len(timings[0].Times))
		}
		r.Passes = append(r.Passes, row)
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

package main

import (
	"slices"

	"github.com/tandem-llm/tandem/app/bench"
	"github.com/tandem-llm/tandem/app/bench/prompts"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/lab/guesses"
	"github.com/tandem-llm/tandem/lab/passes"
	"github.com/tandem-llm/tandem/processes/measure"
)

// Of a slow target, few texts are enough for speeds: they differ far less than what is guessed well.
const (
	headTexts, headCalibration = 1, 4 // prompts of one domain
	headTokens                 = 64   // said to each
	headDomain                 = "go"
)

// heads measures tokens per second where the target can compute.
func (c *splitCmd) heads(a *app, path string, info *engine.Info, p coreGroups) error {
	widths := slices.DeleteFunc(slices.Clone(c.Width), func(n int) bool { return n < 2 })
	config := guesses.Config{Heads: []string{c.Heads}, Target: path, Only: []string{headDomain}, Count: headTexts,
		Calibrate: headCalibration, MaxTokens: headTokens, Temperatures: []float64{0}, Seed: 1, Widths: widths, Rounds: c.Rounds}
	err := config.Validate()
	if err != nil {
		return err
	}
	if config.Heads, err = find.Heads(config.Heads); err != nil {
		return err
	}
	config.Prompts = prompts.Texts
	if err := c.divideByTimes(a, path, info, p); err != nil {
		return err
	}
	bar := &terminal.Steps{To: a.stderr, Counts: true}
	config.Progress = func(p guesses.Progress) { bar.Step(p.Doing, int64(p.Done), int64(p.Total)) }
	on := func(d kernels.Device) guesses.Opener {
		return func(path string, o engine.Options) (*engine.Model, error) {
			o.Device = d
			return a.open(path, o)
		}
	}
	places := []guesses.Place{{Name: "the left group", Open: on(p.groups[0])}, {Name: "both, divided", Open: on(p.both)}}
	if c.Slower == 1 { // threads of one group are equally fast
		pool, err := device.Opener{ISA: c.ISA}.CPU(c.LeftThreads + c.RightThreads)
		if err != nil {
			return err
		}
		defer pool.Close()
		places = append(places, guesses.Place{Name: "one group of all threads", Open: on(pool)})
	}
	r, err := guesses.Compare(a.ctx, config, places)
	bar.End()
	if err != nil {
		return err
	}
	return c.show(a, r)
}

// divideByTimes divides passes of each width as the times of each group alone say.
func (c *splitCmd) divideByTimes(a *app, path string, info *engine.Info, p coreGroups) error {
	widths := slices.Sorted(slices.Values(append([]int{1}, c.Width...)))
	const context, rounds = 64, 3
	b := passes.Split{Name: path, Contexts: []int{context}, Passes: bench.Passes{Widths: slices.Compact(widths), Rounds: rounds}}
	o, err := b.Options(info.Config.Context)
	if err != nil {
		return err
	}
	d, closed, err := p.open(a, path, o)
	if err != nil {
		return err
	}
	defer closed()
	var all []kernels.Division
	for _, n := range b.Widths {
		x, err := d.ByTimes(a.ctx, measure.Point{Rows: n, Context: context}, rounds)
		if err != nil {
			return err
		}
		all = append(all, kernels.Division{Rows: n, Columns: x.Columns, Blocks: x.Blocks})
	}
	return p.both.Divide(all)
}

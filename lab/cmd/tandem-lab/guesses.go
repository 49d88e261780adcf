package main

import (
	"cmp"
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/prompts"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/lab/guesses"
)

type guessesCmd struct {
	Target      string    `help:"GGUF file of the target (default: the shipped one)." placeholder:"FILE"`
	Heads       []string  `help:"Side file of the target by which it guesses by itself (docs/sidefiles.md); may be repeated, one of each kind." placeholder:"FILE" sep:"none"`
	Draft       []string  `help:"GGUF file of a draft: a plain model, a side file of kind dovetail, eagle, eagle3, dflash or mtp, or the word mtp for the draft inside the target's own file; may be repeated." placeholder:"FILE" sep:"none"`
	Prompts     string    `help:"JSON lines with id, domain and prompt (default: the shipped ones)." placeholder:"FILE"`
	Domain      []string  `help:"Only prompts of this domain; may be repeated." placeholder:"NAME"`
	Count       int       `help:"Prompts of each domain that are judged." default:"8"`
	Calibrate   int       `help:"Prompts of each domain, behind those, on which trees are calibrated." default:"12"`
	MaxTokens   int       `help:"Tokens that the target says to a prompt at most." default:"128"`
	Temperature []float64 `help:"Temperatures of the target." default:"0,1" placeholder:"T,…"`
	Seed        uint64    `help:"Seed of the target's draws." default:"1"`
	Width       []int     `help:"Nodes of trees, root and prompt nodes included; if 64 is among them, ppd is also measured with 128 and 256." default:"2,4,8,16,32,64" placeholder:"N,…"`
	Timed       int       `help:"Prompts of each domain that are also decoded with real rounds, which shows which size is fastest; 0 = none." default:"2"`
	Rounds      int       `help:"Passes of each width that are timed; the lower quartile counts." default:"8"`
	deviceFlags
	output
}

// Run measures how good guesses are.
func (c *guessesCmd) Run(a *app) error {
	config := guesses.Config{Heads: c.Heads, Drafts: c.Draft, Only: c.Domain, Count: c.Count, Calibrate: c.Calibrate,
		MaxTokens: c.MaxTokens, Temperatures: c.Temperature, Seed: c.Seed, Widths: c.Width, Timed: c.Timed, Rounds: c.Rounds}
	if err := config.Validate(); err != nil {
		return err
	}
	var err error
	if config.Heads, err = find.Heads(c.Heads); err != nil {
		return err
	}
	if len(c.Draft) > 0 { // none is none here, not those that are shipped
		if config.Drafts, err = find.Drafts(c.Draft, c.Target, tandem.Request{}); err != nil {
			return err
		}
	}
	if config.Target, err = find.Target(c.Target); err != nil {
		return err
	}
	config.Prompts = cmp.Or(c.Prompts, prompts.Texts)
	bar := &terminal.Steps{To: a.stderr, Counts: true}
	config.Progress = func(p guesses.Progress) { bar.Step(p.Doing, int64(p.Done), int64(p.Total)) }
	return c.with(func(d kernels.Device) error {
		config.Open = func(path string, o engine.Options) (*engine.Model, error) {
			o.Device = d
			return a.open(path, o)
		}
		config.Draft = func(path string, o engine.Options) (*engine.Model, error) {
			o.Device = d
			return terminal.Open(a.stderr, path, o, func(path string, o engine.Options) (*engine.Model, error) {
				return engine.OpenDraft(path, config.Target, o)
			})
		}
		r, err := guesses.Run(a.ctx, config)
		bar.End()
		if err != nil {
			return err
		}
		return c.show(a, r)
	})
}

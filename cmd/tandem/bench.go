package main

import (
	"cmp"
	"io"

	"github.com/tandem-llm/tandem/app/bench"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
)

type benchCmd struct {
	Decode benchDecodeCmd `cmd:"" help:"Passes of a model by width, beside the box's limit."`
	Pair   benchPairCmd   `cmd:"" help:"Target and drafts as HTTP clients see them."`
	System benchSystemCmd `cmd:"" help:"Speculation against plain decoding, and strategies."`
}

type benchDecodeCmd struct {
	Model   string  `help:"GGUF file (default: the shipped target)." placeholder:"FILE" setting:"-"`
	Context int     `help:"Tokens in the KV cache before each pass." default:"256" setting:"-"`
	Prefill int     `help:"Also measure a prompt of this many tokens, as a verifier reads it, beside the limit with attention; 0 = none." default:"0" placeholder:"N" setting:"-"`
	By      string  `help:"Also show where the time goes: operation (each kind of operation, and how long each thread waits for others)." enum:"operation," default:"" placeholder:"operation" setting:"-"`
	Chain   []int   `help:"Also decode texts, plainly and with chains of so many guesses. They are made from the plain text." placeholder:"N,…" setting:"-"`
	Right   float64 `help:"With --chain: the chance of a guess to be right." default:"0.5" setting:"-"`
	Draft   string  `help:"With --chain: GGUF file of a draft. One of its passes runs for each guess, which then costs what it would; what it says is not used." placeholder:"FILE" setting:"-"`
	Tokens  int     `help:"With --chain: tokens of a text." default:"32" setting:"-"`
	Texts   int     `help:"With --chain: texts, each drawn with a seed of its own." default:"2" setting:"-"`
	Width   []int   `help:"Rows of a pass." default:"1,2,4,8,16,32,64" placeholder:"N,…" setting:"-"`
	Rounds  int     `help:"Passes of each kind, in turn; the best and the median count." default:"20" setting:"-"`
	start.Compute
	settings.KV
	start.Budget
	settings.CacheFolder
	output
}

// Run measures whole passes.
func (c *benchDecodeCmd) Run(a *app) error {
	passes := bench.Passes{Widths: c.Width, Rounds: c.Rounds}
	if err := cmp.Or(passes.Validate(), c.Compute.Validate(), c.Budget.Validate()); err != nil {
		return err
	}
	path, err := find.Target(c.Model)
	if err != nil {
		return err
	}
	info, err := engine.Inspect(path)
	if err != nil {
		return err
	}
	b := bench.Decode{Name: roles.ModelName(path), Context: c.Context, Prefill: c.Prefill, KVType: c.KVType, Passes: passes,
		ByOperation: c.By == "operation",
		Guessing:    measure.Guessing{Chains: c.Chain, Right: c.Right, Tokens: c.Tokens, Rounds: c.Texts}}
	o, err := b.Options(info.Config.Context)
	if err != nil {
		return err
	}
	var at kernels.Device
	m, closed, err := c.Load(a.say, func(d kernels.Device) (*engine.Model, error) {
		o.Device, at = d, d
		if o, err = c.Fit(a.env(), c.CacheFolder, path, o); err != nil {
			return nil, err
		}
		return a.openModel(path, o)
	})
	if err != nil {
		return err
	}
	defer closed()
	if c.Draft != "" && len(c.Chain) > 0 {
		b.Draft, err = a.openModel(c.Draft, engine.Options{Device: at, KVType: c.KVType, KVPages: engine.PagesFor(1, c.Context+1, 1)})
		if err != nil {
			return err
		}
		defer b.Draft.Close()
	}
	r, err := b.Run(a.ctx, m)
	if err != nil {
		return err
	}
	return c.show(a, r)
}

// show prints a result as JSON or as text.
func (o output) show(a *app, r interface{ Print(to io.Writer) error }) error {
	if o.JSON {
		return terminal.PrintJSON(a.stdout, r)
	}
	return r.Print(terminal.Printable{To: a.stdout})
}

package main

import (
	"cmp"
	"io"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/measure"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/settings"
)

type benchCmd struct {
	Kernels benchKernelsCmd `cmd:"" help:"Products of single matrices, beside the limits of the machine."`
	Decode  benchDecodeCmd  `cmd:"" help:"Whole passes of a model, by width: time T_V(W) beside its limit."`
	Devices benchDevicesCmd `cmd:"" help:"Several devices and placements in one run: equal bits and ids, a draft's step beside its limit, tokens per second, what drafting ahead brings."`
	Experts benchExpertsCmd `cmd:"" help:"What the passes of a model with experts cost by the experts that they use: chains, trees, and rows that are all alike."`
	Guesses benchGuessesCmd `cmd:"" help:"How good the guesses of heads, prompt tokens and drafts are: tokens a round by the size of trees, accuracies, calibration."`
	Split   benchSplitCmd   `cmd:"" help:"Passes divided between two groups of cores: even, by the times of each alone, and adjusted, beside the ideal."`
	System  benchSystemCmd  `cmd:"" help:"All processes together: speculation against plain decoding, and strategies against each other."`
}

// widthFlags say how many rows the passes of a benchmark have, and how many passes count.
type widthFlags struct {
	Width  []int `help:"Rows of a pass." default:"1,2,4,8,16,32,64" placeholder:"N,…" setting:"-"`
	Rounds int   `help:"Passes of each kind, in turn; the best and the median count." default:"20" setting:"-"`
}

func (w widthFlags) passes() bench.Passes { return bench.Passes{Widths: w.Width, Rounds: w.Rounds} }

type benchKernelsCmd struct {
	Type []string `help:"Weight types, like q8_0; default: all with kernels of their own." placeholder:"TYPE,…" setting:"-"`
	Rows int      `help:"Outputs of a matrix." default:"8192" setting:"-"`
	Cols int      `help:"Inputs of a matrix." default:"2048" setting:"-"`
	widthFlags
	computeFlags
	output
}

// Run measures single matrices.
func (c *benchKernelsCmd) Run(a *app) error {
	b := bench.Kernels{Types: c.Type, Rows: c.Rows, Cols: c.Cols, Passes: c.passes()}
	if err := b.Validate(); err != nil {
		return err
	}
	if c.GPUMemory > 0 {
		return tandem.Errorf("", tandem.Invalid, "--gpu-memory %v: single matrices have no layers: want 'bench decode'", c.GPUMemory)
	}
	var r *bench.KernelsResult
	err := c.with(a, func(d kernels.Device) (err error) {
		r, err = b.Run(a.ctx, d)
		return err
	})
	if err != nil {
		return err
	}
	return c.show(a, r)
}

type benchDecodeCmd struct {
	Model   string  `help:"GGUF file (default: the shipped target)." placeholder:"FILE" setting:"-"`
	Context int     `help:"Tokens in the KV cache before each pass." default:"256" setting:"-"`
	Prefill int     `help:"Also measure a prompt of this many tokens in one pass; 0 = none." default:"0" placeholder:"N" setting:"-"`
	By      string  `help:"Also show where the time goes: operation (each kind of operation, and how long each thread waits for others)." enum:"operation," default:"" placeholder:"operation" setting:"-"`
	Chain   []int   `help:"Also decode texts, plainly and with chains of so many guesses; needs no draft: the plain text is known." placeholder:"N,…" setting:"-"`
	Right   float64 `help:"With --chain: the chance of a guess to be right." default:"0.5" setting:"-"`
	Tokens  int     `help:"With --chain: tokens of a text." default:"32" setting:"-"`
	Texts   int     `help:"With --chain: texts, each drawn with a seed of its own." default:"2" setting:"-"`
	widthFlags
	computeFlags
	settings.KV
	budgetFlags
	cacheFlags
	output
}

// Run measures whole passes.
func (c *benchDecodeCmd) Run(a *app) error {
	if err := cmp.Or(c.passes().Validate(), c.computeFlags.check(), c.budgetFlags.check()); err != nil {
		return err
	}
	path, err := targetPath(c.Model)
	if err != nil {
		return err
	}
	info, err := engine.Inspect(path)
	if err != nil {
		return err
	}
	b := bench.Decode{Name: roles.ModelName(path), Context: c.Context, Prefill: c.Prefill, KVType: c.KVType, Passes: c.passes(),
		ByOperation: c.By == "operation",
		Guessing:    measure.Guessing{Chains: c.Chain, Right: c.Right, Tokens: c.Tokens, Rounds: c.Texts}}
	o, err := b.Options(info.Config.Context)
	if err != nil {
		return err
	}
	m, closed, err := c.load(a, func(d kernels.Device) (*engine.Model, error) {
		o.Device = d
		if o, err = c.fit(a, c.cacheFlags, path, o); err != nil {
			return nil, err
		}
		return a.openModel(path, o)
	})
	if err != nil {
		return err
	}
	defer closed()
	r, err := b.Run(a.ctx, m)
	if err != nil {
		return err
	}
	return c.show(a, r)
}

// show prints a result as JSON or as text.
func (o output) show(a *app, r interface{ Print(to io.Writer) error }) error {
	if o.JSON {
		return printJSON(a.stdout, r)
	}
	return r.Print(printable{a.stdout})
}

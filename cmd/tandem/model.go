package main

import (
	"github.com/tandem-llm/tandem/app/modelinfo"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/processes/settings"
)

type modelCmd struct {
	Info     modelInfoCmd     `cmd:"" help:"Show what a GGUF file holds and what it needs here."`
	Quantize modelQuantizeCmd `cmd:"" help:"Store a model's weights as another type."`
	Trim     modelTrimCmd     `cmd:"" help:"Make a fast draft that says frequent tokens only."`
	Expand   modelExpandCmd   `cmd:"" help:"Make a larger model of the same function, or a side file."`
	Random   modelRandomCmd   `cmd:"" help:"Make a model of a published shape and random weights."`
	States   modelStatesCmd   `cmd:"" help:"Write down what a model computes over texts."`
	Import   modelImportCmd   `cmd:"" help:"Make a side file of published heads or a draft."`
}

type modelInfoCmd struct {
	File     string   `arg:"" help:"GGUF file; any one of them for a model split into several."`
	Identity bool     `help:"Also print the model's identity and lineage, a side file's digest. Reads the whole file."`
	Target   string   `help:"For a side file: say whether it belongs to this model." placeholder:"FILE" setting:"-"`
	Heads    []string `help:"Side file that the model is to have as a target, as of a verifier: count its memory too. May be repeated." placeholder:"FILE" sep:"none" setting:"-"`
	settings.Sizes
	settings.KV
	start.Budget
	output
}

// Run prints what a model file holds.
func (c *modelInfoCmd) Run(a *app) error {
	if err := c.Budget.Validate(); err != nil {
		return err
	}
	if c.Identity {
		defer terminal.Wide()()
	}
	info, err := modelinfo.Of(a.ctx, modelinfo.Query{Path: c.File, Identity: c.Identity, Target: c.Target, Heads: c.Heads,
		Sizes: c.Sizes, KVType: c.KVType, KVMemory: c.KVMemory.Bytes(), Budget: c.MemoryBudget.Bytes(),
		Streams: c.Streaming(a.env(), "", settings.GPULayers{}, settings.CacheFolder{})})
	if err != nil {
		return err
	}
	return c.show(a, info)
}

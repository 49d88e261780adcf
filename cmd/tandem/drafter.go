package main

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/roles/drafter"
)

type drafterCmd struct {
	Draft       []string `help:"GGUF file of a draft model; may be repeated (default: the three shipped experts)." placeholder:"FILE" sep:"none"`
	InlineLimit int      `help:"Send trees larger than this many bytes through shared memory to processes on this host; 0 = all." default:"0"`
	Advertise   string   `help:"Address under which the other processes reach this drafter (default: where it listens)." placeholder:"ADDR"`
	aheadFlags
	addressFlags
	kernelFlags
	prefixFlags
	roleFlags
}

// Run runs a drafter process until it is stopped.
func (c *drafterCmd) Run(a *app) error {
	paths, err := draftPaths(c.Draft, tandem.Request{})
	if err != nil {
		return err
	}
	models, err := c.models(a)
	if err != nil {
		return err
	}
	prefixes, err := c.pages()
	if err != nil {
		return err
	}
	return drafter.Run(a.ctx, drafter.Config{Config: c.config(a, c.Listen), Models: models, Drafts: paths, Pool: c.Pool,
		InlineLimit: c.InlineLimit, Advertise: c.Advertise, AheadGain: c.AheadGain, PrefixCache: prefixes})
}

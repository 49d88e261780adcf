package main

import (
	"github.com/tandem-llm/tandem/roles/verifier"
)

type verifierCmd struct {
	Target string `help:"GGUF file of the target model (default: the shipped one)." placeholder:"FILE"`
	addressFlags
	kernelFlags
	prefixFlags
	roleFlags
	measureFlags
	spareFlags
}

// measureFlags are the verifier's alone.
type measureFlags struct {
	Measure bool `help:"Measure at the start, for at most a second or eight passes, what passes of the target cost. The planner uses this; without it, it learns from the passes that it sees." default:"true" negatable:""`
}

// spareFlags say what a verifier leaves to other processes on the same machine.
type spareFlags struct {
	SpareThreads int `help:"Threads to leave to a drafter on the same machine, if passes measured at the start take at most a twentieth longer without them." default:"0"`
}

// Run runs a verifier until it is stopped.
func (c *verifierCmd) Run(a *app) error {
	path, err := targetPath(c.Target)
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
	return verifier.Run(a.ctx, verifier.Config{Config: c.config(a, c.Listen), Models: models, Target: path, Pool: c.Pool,
		Drafters:    c.Drafter,
		PrefixCache: prefixes, Measure: c.Measure, SpareThreads: c.SpareThreads})
}

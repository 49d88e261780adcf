package main

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/roles/verifier"
)

type verifierCmd struct {
	Target string `help:"GGUF file of the target model (default: the shipped one)." placeholder:"FILE"`
	addressFlags
	kernelFlags
	prefixFlags
	roleFlags
	measureFlags
	batchFlags
	spareFlags
}

// measureFlags are the verifier's alone.
type measureFlags struct {
	Measure bool `help:"Measure at the start, for at most a second or eight passes, what passes of the target cost. The planner uses this; without it, it learns from the passes that it sees." default:"true" negatable:""`
}

// batchFlags say how sessions share the passes of the target.
type batchFlags struct {
	Batches int `help:"Divide the running sessions into this many batches: a pass verifies one of them while the others are drafted for; 1 = draft for all, then verify all. 0 = a pass takes whatever waits when it can begin." default:"0"`
}

func (b batchFlags) check() error {
	if b.Batches < 0 {
		return tandem.Errorf("", tandem.Invalid, "--batches is %d: want 0 or more", b.Batches)
	}
	return nil
}

// spareFlags say what a verifier leaves to other processes on the same machine.
type spareFlags struct {
	SpareThreads int `help:"Threads to leave to a drafter on the same machine, if passes measured at the start take at most a twentieth longer without them." default:"0"`
}

// Run runs a verifier until it is stopped.
func (c *verifierCmd) Run(a *app) error {
	if err := c.batchFlags.check(); err != nil {
		return err
	}
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
		PrefixCache: prefixes, Batches: c.Batches, Measure: c.Measure, SpareThreads: c.SpareThreads})
}

package main

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/roles/drafter"
	"github.com/tandem-llm/tandem/roles/pair"
)

type drafterCmd struct {
	Draft  []string `help:"GGUF file of a draft model; may be repeated (default: the three shipped experts)." placeholder:"FILE" sep:"none"`
	Target string   `help:"GGUF file of the target, for drafts that read its hidden states: they use its embeddings and output matrix (default: the shipped one)." placeholder:"FILE"`
	draftHeadsFlags
	InlineLimit int    `help:"Send trees larger than this many bytes through shared memory to processes on this host; 0 = all." default:"0"`
	Advertise   string `help:"Address under which the other processes reach this drafter (default: where it listens)." placeholder:"ADDR"`
	aheadFlags
	addressFlags
	kernelFlags
	prefixFlags
	roleFlags
}

// Run runs a drafter process until it is stopped.
func (c *drafterCmd) Run(a *app) error {
	paths, err := draftPaths(c.Draft, c.Target, tandem.Request{})
	if err != nil {
		return err
	}
	models, err := c.models(a)
	if err != nil {
		return err
	}
	if taps, err := pair.Taps(paths); err != nil {
		return err
	} else if len(taps) > 0 {
		if models.Target, err = targetPath(c.Target); err != nil {
			return err
		}
		models.Open = a.openDrafts(models.Target)
	}
	if models.Sides, err = pair.Sides(paths, c.DraftHeads); err != nil {
		return err
	}
	prefixes, err := c.pages()
	if err != nil {
		return err
	}
	return c.choose(a, func(p place) error {
		models.Device, models.Threads = c.at(p), c.threads(p)
		gain, host, err := c.gain(p)
		if err != nil {
			return err
		}
		return drafter.Run(a.ctx, drafter.Config{Config: c.config(a, c.Listen), Models: models, Drafts: paths, Pool: c.Pool,
			InlineLimit: c.InlineLimit, Advertise: c.Advertise, AheadGain: gain, Host: host, PrefixCache: prefixes,
			Verifier: c.Verifier})
	})
}

// gain returns the setting of a drafter at a place, and what opens the cores that it leaves to a verifier on this machine. A verifier on
// the same cores is something that only whoever starts both knows.
func (c *drafterCmd) gain(p place) (float64, func() (roles.Device, error), error) {
	if c.AheadGain != drafter.Measured {
		return c.AheadGain, nil, nil
	}
	all, err := cpu.Cores()
	if err != nil {
		return 0, nil, err
	}
	switch others := p.others(all); len(others) {
	case 0:
		return sharedGain, nil, nil
	case len(all):
		return drafter.Measured, func() (roles.Device, error) { return openCPU(0, c.ISA) }, nil
	default:
		return drafter.Measured, func() (roles.Device, error) { return c.open(place{cores: others}, 0) }, nil
	}
}

// sharedGain is about what a pass ahead costs a verifier on the same cores.
const sharedGain = 0.7

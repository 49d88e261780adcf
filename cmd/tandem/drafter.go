package main

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/roles/pair"
	"github.com/tandem-llm/tandem/processes/settings"
)

type drafterCmd struct {
	settings.Drafter
	childFlags
}

// Run runs a drafter process until it is stopped.
func (c *drafterCmd) Run(a *app) error {
	paths, err := find.Drafts(c.Draft, c.Target, tandem.Request{})
	if err != nil {
		return err
	}
	compute := computeFlags{Processor: c.Processor}
	models, err := kernelFlags{compute, c.Loading}.models(a)
	if err != nil {
		return err
	}
	if taps, err := pair.Taps(paths); err != nil {
		return err
	} else if len(taps) > 0 {
		if models.Target, err = find.Target(c.Target); err != nil {
			return err
		}
		models.Open = a.openDrafts(models.Target)
	}
	if models.Sides, err = pair.Sides(paths, c.DraftHeads); err != nil {
		return err
	}
	prefixes, err := prefixPages(c.Prefixes)
	if err != nil {
		return err
	}
	return compute.choose(a, nil, func(p device.Spec) error {
		models.Device, models.Threads = compute.at(p), compute.threads(p)
		gain, host, err := c.gain(compute, p)
		if err != nil {
			return err
		}
		return drafter.Run(a.ctx, drafter.Config{Config: c.config(a, c.Listen, c.Process, c.Logging), Models: models,
			Drafts: paths, Pool: c.Pool,
			InlineLimit: c.InlineLimit, Advertise: c.Advertise, AheadGain: gain, Host: host, PrefixCache: prefixes,
			Verifiers: c.Drafter.Verifier})
	})
}

// gain returns the setting of a drafter at a place, and what opens the cores that it leaves to a verifier on this machine. A verifier on
// the same cores is something that only whoever starts both knows.
func (c *drafterCmd) gain(compute computeFlags, p device.Spec) (float64, func() (roles.Device, error), error) {
	if c.AheadGain != drafter.Measured {
		return c.AheadGain, nil, nil
	}
	all, err := cpu.Cores()
	if err != nil {
		return 0, nil, err
	}
	switch others := p.Others(all); len(others) {
	case 0:
		return sharedGain, nil, nil
	case len(all):
		return drafter.Measured, func() (roles.Device, error) { return compute.opener().CPU(0) }, nil
	default:
		return drafter.Measured, func() (roles.Device, error) { return compute.opener().Open(device.Spec{Cores: others}, 0) }, nil
	}
}

// sharedGain is about what a pass ahead costs a verifier on the same cores, if the draft leaves it some of them.
const sharedGain = 0.7

package main

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/start"
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
	compute := start.Compute{Processor: c.Processor, OrCPU: c.OrCPU}
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
	models.Kept = start.Images(a.env(), c.CacheFolder)
	c.sharing(a, &models)
	prefixes, err := start.PrefixPages(c.Prefixes)
	if err != nil {
		return err
	}
	return compute.Choose(a.say, nil, func(p device.Spec) error {
		models.Device, models.Threads = compute.Place(p), compute.ThreadsAt(p)
		gain, host, err := compute.Gain(c.AheadGain, p)
		if err != nil {
			return err
		}
		with := c.Drafter
		with.Draft, with.AheadGain, with.CacheDir = paths, gain, start.KeepIn(c.CacheDir)
		return drafter.Run(a.ctx, drafter.Setup{Drafter: with, Program: c.program(a, c.Logging), Models: models, PrefixPages: prefixes,
			Host: host})
	})
}

package main

import (
	"cmp"
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/roles/verifier"
	"github.com/tandem-llm/tandem/processes/settings"
)

type verifierCmd struct {
	settings.Verifier
	childFlags
}

// Run runs a verifier until it is stopped.
func (c *verifierCmd) Run(a *app) error {
	compute, budget := start.Compute{Processor: c.Processor, GPULayers: c.GPULayers, OrCPU: c.OrCPU}, start.Budget{Budget: c.Budget}
	if err := cmp.Or(start.CheckPlan(c.PassCosts), budget.Validate(), budget.On(c.Device, c.GPULayers)); err != nil {
		return err
	}
	path, err := find.Target(c.Target)
	if err != nil {
		return err
	}
	models, err := kernelFlags{compute, c.Loading}.models(a)
	if err != nil {
		return err
	}
	heads, err := find.Heads(c.Heads)
	if err != nil {
		return err
	}
	models.Sides = map[string][]string{path: heads}
	models.Kept = start.Images(a.env(), c.CacheFolder)
	c.sharing(a, &models)
	pages, err := start.PrefixPages(c.Prefixes)
	if err != nil {
		return err
	}
	var decision *profile.Decision
	if c.Device == "auto" {
		decision = placement.Decided(start.PlanFile(c.PassCosts), buildVersion().Version, path, c.KVType, func(why error) {
			fmt.Fprintln(a.stderr, "tandem: "+terminal.OneLine(fmt.Sprintf("--device auto: plan not used: %v", why)))
		})
	}
	guest, err := c.guest(path)
	if err != nil {
		return err
	}
	files, err := start.PrefixFiles(c.PrefixStore, c.CacheFolder)
	if err != nil {
		return err
	}
	return compute.Choose(a.say, decision, func(p device.Spec) error {
		models.Device, models.Threads = compute.Place(p), compute.ThreadsAt(p)
		models.Streaming = budget.Streaming(a.env(), p.String(), compute.GPULayers, c.CacheFolder)
		with := c.Verifier
		with.CacheDir = start.KeepIn(c.CacheDir)
		if with.Target, with.Plan = path, start.PlanFile(c.PassCosts); !p.Shared() {
			with.SpareThreads = 0 // its cores are its own
		}
		return verifier.Run(a.ctx, verifier.Setup{Verifier: with, Program: c.program(a, c.Logging), Models: models, PrefixPages: pages,
			PrefixFiles: files, Guest: guest})
	})
}

// guest returns the drafter of --beside-draft, for the target at path.
func (c *verifierCmd) guest(path string) (out drafter.Setup, err error) {
	if c.BesideDraft == "" {
		return out, nil
	}
	files, err := find.Drafts([]string{c.BesideDraft}, path, tandem.Request{})
	if err != nil {
		return out, err
	}
	if out.PrefixPages, err = start.PrefixPages(c.Prefixes); err != nil {
		return out, err
	}
	out.Drafter = settings.Drafter{Draft: files, Target: path, Peer: c.Peer, Processor: settings.Processor{Threads: c.BesideThreads},
		DrafterOptions: settings.DrafterOptions{Drafting: c.Drafting}, CacheFolder: c.CacheFolder}
	if out.CacheDir = start.KeepIn(c.CacheDir); out.AheadGain == drafter.Measured {
		out.AheadGain = start.SharedGain
	}
	return out, nil
}

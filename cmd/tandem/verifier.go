package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles/verifier"
	"github.com/tandem-llm/tandem/processes/settings"
)

type verifierCmd struct {
	settings.Verifier
	childFlags
}

// checkPlan refuses a plan that somebody has named and that is not there; the default one may be missing.
func checkPlan(m settings.PassCosts) error {
	if m.Plan == "" || m.Plan == "off" {
		return nil
	}
	if _, err := os.Stat(m.Plan); errors.Is(err, fs.ErrNotExist) {
		return tandem.Errorf("", tandem.Invalid, "--plan %s: no such file: want what 'tandem profile' has written, or off", m.Plan)
	}
	return nil
}

// planFile returns the file of the plan to look for; "" for none.
func planFile(m settings.PassCosts) string {
	switch m.Plan {
	case "off":
		return ""
	case "":
		dir, err := cache.Dir()
		if err != nil {
			return "" // a user without a folder has no plan
		}
		return filepath.Join(dir, profile.Name)
	}
	return m.Plan
}

// Run runs a verifier until it is stopped.
func (c *verifierCmd) Run(a *app) error {
	compute, budget := computeFlags{c.Processor, c.GPULayers}, budgetFlags{c.Budget}
	if err := cmp.Or(checkPlan(c.PassCosts), budget.check(), budget.on(c.Device, c.GPULayers)); err != nil {
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
	pages, err := prefixPages(c.Prefixes)
	if err != nil {
		return err
	}
	var decision *profile.Decision
	if c.Device == "auto" {
		decision = placement.Decided(planFile(c.PassCosts), buildVersion().Version, path, c.KVType, func(why error) {
			fmt.Fprintln(a.stderr, "tandem: "+terminal.OneLine(fmt.Sprintf("--device auto: plan not used: %v", why)))
		})
	}
	files, err := prefixFiles(c.PrefixStore, cacheFlags{c.CacheFolder})
	if err != nil {
		return err
	}
	return compute.choose(a, decision, func(p device.Spec) error {
		models.Device, models.Threads = compute.at(p), compute.threads(p)
		models.Streaming = budget.streaming(a, p.String(), c.GPULayers, cacheFlags{c.CacheFolder})
		spare := c.SpareThreads
		if !p.Shared() {
			spare = 0 // its cores are its own
		}
		return verifier.Run(a.ctx, verifier.Config{Config: c.config(a, c.Listen, c.Process, c.Logging), Models: models,
			Target: path, Pool: c.Pool, Advertise: c.Advertise, Drafters: c.Drafter,
			PrefixCache: pages, Prefixes: files, Batches: c.Batches, Measure: c.Measure,
			Plan: planFile(c.PassCosts), SpareThreads: spare, Apart: c.DraftersApart,
			Taps: c.Taps.Taps, FeatureBytes: c.FeatureMemory << 20})
	})
}

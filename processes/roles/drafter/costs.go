package drafter

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
)

// costsOf returns what passes of a draft cost, as kept or else measured now, so that a gateway knows it before the first round. If that
// fails it returns nil, and the planner learns it from rounds.
func (c Setup) costsOf(ctx context.Context, r *roles.Process, name string, m *engine.Model) []tandem.Cost {
	kept := profile.Kept{Cache: c.Cache, Version: r.Version}
	what := profile.What{Kind: "draft", Identity: m.Names().Identity, Threads: m.About().Threads, Device: m.About().Kernels}
	costs, err := kept.Costs(what)
	if err == nil {
		return costs
	}
	r.CostsNotUsed(err)
	if costs, err = measure.Draft(ctx, m, r.Alive); err != nil {
		r.Log.Warn("costs of passes not measured", "drafter", name, "error", err)
		return nil
	}
	r.KeepCosts(kept, what, costs)
	return costs
}

// withCosts adds to a draft's description what its passes cost, and how many tokens of a text it reads.
func withCosts(costs []tandem.Cost, window int, told func() tandem.Description) func() tandem.Description {
	return func() tandem.Description {
		d := told()
		d.Costs, d.Window = costs, window
		return d
	}
}

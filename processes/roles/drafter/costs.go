package drafter

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/roles"
)

// costsOf measures what passes of a draft cost, so that a gateway knows it before the first round. If that fails it returns nil, and the
// planner learns it from rounds.
func costsOf(ctx context.Context, r *roles.Process, name string, m *engine.Model) []tandem.Cost {
	costs, err := measure.Draft(ctx, m, r.Alive)
	if err != nil {
		r.Log.Warn("costs of passes not measured", "drafter", name, "error", err)
		return nil
	}
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

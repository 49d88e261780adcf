package drafter

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// costs is what passes of a draft cost, as far as that is known. Safe for concurrent use.
type costs struct{ now atomic.Pointer[[]tandem.Cost] }

func (c *costs) get() []tandem.Cost {
	if now := c.now.Load(); now != nil {
		return *now
	}
	return nil
}

// costsOf returns what passes of a draft cost, so that a gateway knows it before the first round: as kept by an earlier process, else
// nothing, and then the drafter of that configuration measures them in idle moments. Until then the planner learns them from rounds.
func (c Setup) costsOf(r *roles.Process, of *drafter.Config) *costs {
	m, kept, found := of.Model, profile.Kept{Cache: c.Cache, Version: r.Version}, new(costs)
	what := profile.What{Kind: "draft", Identity: m.Names().Identity, Threads: m.About().Threads, Device: m.About().Kernels}
	if was, err := r.KeptCosts(kept, what); err == nil {
		found.now.Store(&was)
		return found
	}
	measuring := r.NewMeasuring(kept, func(ctx context.Context, alive func()) ([]roles.Measured, error) {
		now, err := measure.Draft(ctx, m, alive)
		return []roles.Measured{{What: what, Costs: now}}, err
	})
	measuring.Begin(func(all []roles.Measured) {
		now := slices.Clone(all[0].Costs)
		found.now.Store(&now)
	})
	of.Resting = measuring
	return found
}

// withCosts adds to a draft's description what its passes cost, and how many tokens of a text it reads.
func withCosts(c *costs, window int, told func() tandem.Description) func() tandem.Description {
	return func() tandem.Description {
		d := told()
		d.Costs, d.Window = c.get(), window
		return d
	}
}

// announced fills in what the drafts' passes cost now.
func announced(drafts []draft) func(what *wire.Announcement) {
	return func(what *wire.Announcement) {
		what.Drafters = slices.Clone(what.Drafters)
		for i := range what.Drafters {
			what.Drafters[i].Costs = drafts[i].costs.get()
		}
	}
}

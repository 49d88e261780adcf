package verifier

import (
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
)

// divide tells a device made of two how to divide the passes of m: as the plan says, else by a guess from the limits of both sides, else
// half each, with a warning that says why. Nothing is done for a model on one device. Errors: the model's.
func (c Setup) divide(r *roles.Process, m *engine.Model, plan *profile.Plan) error {
	if left, _ := m.Passes().Sides(); left == nil {
		return nil
	}
	if why := m.Passes().Apart(); why != nil {
		r.Log.Warn("each of the two devices has a copy of weights and cache", "device", m.About().Kernels, "why", why)
	}
	all, why := plan.Divisions(profile.ThisBox(), r.Version, target(m, m.About().Threads))
	if why == nil {
		return m.Passes().Divide(all)
	}
	r.Alive()
	all, err := measure.GuessShares(m)
	if err != nil { // such as no memory for a probe beside the model
		r.Log.Warn("passes are divided in halves", "device", m.About().Kernels, "plan", why, "guess", err)
		return m.Passes().Divide(nil)
	}
	r.Log.Warn("passes are divided by a guess from the limits of both sides", "device", m.About().Kernels, "left", shares(all), "plan", why)
	return m.Passes().Divide(all)
}

// target says what the passes of a target are, as a plan has it.
func target(m *engine.Model, threads int) profile.What {
	return profile.What{Kind: "target", Identity: m.Names().Identity, Threads: threads, Device: m.About().Kernels}
}

// shares writes the left side's shares of columns, by rows.
func shares(all []kernels.Division) string {
	var words []string
	for _, d := range all {
		words = append(words, fmt.Sprintf("%d rows: %.0f %%", d.Rows, 100*d.Columns))
	}
	return strings.Join(words, ", ")
}

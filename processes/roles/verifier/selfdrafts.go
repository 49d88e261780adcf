package verifier

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
)

// plan returns the plan file merged with the one beside the model, without what cannot be used, which is logged.
func (c Setup) plan(r *roles.Process) *profile.Plan {
	if c.Plan == "" {
		return &profile.Plan{Format: profile.Format}
	}
	plan, notes := profile.Load(c.Plan, c.Target)
	for _, why := range notes {
		r.Log.Warn(why)
	}
	return plan
}

// selfDrafts returns the self-drafts of the model, with what the plan says of them: how right their probabilities are on calibration
// text, and how long a guess takes. What is stale is left out, with a warning. Errors: the side files', and ctx's.
func (c Setup) selfDrafts(ctx context.Context, r *roles.Process, m *engine.Model, plan *profile.Plan) ([]tandem.SelfDraft, error) {
	selfDrafts := m.SelfDrafts()
	if len(plan.Tables) == 0 && plan.Machine == nil {
		return selfDrafts, nil
	}
	sides := map[string]string{}
	for _, path := range c.Models.Sides[c.Target] {
		spec, err := engine.SideOf(path)
		if err != nil {
			return nil, err
		}
		if sides[spec.SelfDraft().Name], err = side.Lineage(ctx, path); err != nil {
			return nil, err
		}
	}
	for i := range selfDrafts {
		w, lineage := &selfDrafts[i], sides[selfDrafts[i].Name]
		tables, stale := plan.For(m.Names().Lineage, w.Name, lineage, 0)
		for _, why := range stale {
			r.Log.Warn("plan not used", "why", why)
		}
		w.Greedy, w.Sampled = profile.Lines(tables, w.Levels)
		costs, err := plan.Costs(profile.ThisBox(), r.Version, profile.What{Kind: w.Name, Identity: tandem.Identity(lineage),
			Threads: m.About().Threads, Device: m.About().Kernels})
		switch {
		case err == nil:
			w.Time = profile.Nearest(costs)[0].Time
		case plan.Machine != nil:
			r.Log.Warn("plan not used", "self-draft", w.Name, "error", err)
		}
		w.Time = min(w.Time, time.Minute)
	}
	return selfDrafts, nil
}

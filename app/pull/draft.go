package pull

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/modelinfo"
	"github.com/tandem-llm/tandem/engine"
)

// Draft fetches a model that may draft, and that is not on this machine, if it fits into the memory that is free now and check accepts the
// file that its header alone makes, with zeros in place of the weights. Whether a side file fits is for check to say. It shows nothing.
// Errors: Exhausted if it does not fit; those of check, Look, hub.Config.Plan and hub.Config.Fetch.
func (p Puller) Draft(ctx context.Context, name string, check func(path string) error) (path string, err error) {
	n, err := p.Parse(name)
	if err != nil {
		return "", err
	}
	plan, err := p.Hub.Plan(ctx, n)
	if err != nil {
		return "", err
	}
	defer plan.Close()
	header, back, err := plan.Headers(ctx)
	if err != nil {
		return "", err
	}
	spec, err := engine.SideOf(header)
	if err == nil && spec.Kind == "" {
		var need modelinfo.Need
		if need, err = p.Look(ctx, plan); err == nil && !need.Fits {
			err = tandem.Errorf("", tandem.Exhausted, "%s", need)
		}
	}
	if err == nil {
		err = check(header)
	}
	if back(); err != nil {
		return "", err
	}
	f, err := p.Hub.Fetch(ctx, plan, func(int64, int64, bool) {})
	return f.Path, err
}

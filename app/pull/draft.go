package pull

import (
	"context"

	"github.com/tandem-llm/tandem"
)

// Draft fetches a model that may draft, and that is not on this machine, if it fits into the memory that is free now and check accepts the
// file that its header alone makes, with zeros in place of the weights. Whether a side file fits is for check to say. It shows nothing.
// Errors: Exhausted if it does not fit; those of check, Look, hub.Config.Plan and hub.Config.Fetch.
func (p Puller) Draft(ctx context.Context, name string, check func(path string) error) (path string, err error) {
	n, err := p.Parse(name)
	if err != nil {
		return "", err
	}
	if err := p.Hub.Writable(n); err != nil {
		return "", err
	}
	plan, err := p.Hub.Plan(ctx, n)
	if err != nil {
		return "", err
	}
	defer plan.Close()
	if need, err := p.Look(ctx, plan); err != nil {
		return "", err
	} else if !need.Fits {
		return "", tandem.Errorf("", tandem.Exhausted, "%s", need)
	}
	header, back, err := plan.Headers(ctx)
	if err != nil {
		return "", err
	}
	err = check(header)
	if back(); err != nil {
		return "", err
	}
	f, err := p.Hub.Fetch(ctx, plan, func(int64, int64, bool) {})
	return f.Path, err
}

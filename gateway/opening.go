package gateway

import (
	"context"
	"errors"

	"github.com/tandem-llm/tandem"
)

// opening is one Open of the drafter. err may be read once done is closed.
type opening struct {
	done   chan struct{}
	err    error
	opened tandem.Opened
	held   tandem.Position
	cancel context.CancelFunc
	end    tandem.End // nil once called
}

// open opens the session at the drafter, for as long as that gets on.
func (t *opening) open(ctx context.Context, l *liaison, o tandem.Opening) (err error) {
	ctx, a := advancing(ctx, "drafter "+l.of.Name, l.g.cfg.Timeouts.Stall)
	defer a.stop()
	o.Progress = func(p tandem.Progress) { a.told(p) }
	if t.opened, err = l.of.Drafter.Open(ctx, o); err != nil && errors.Is(context.Cause(ctx), tandem.Deadline) {
		err = context.Cause(ctx)
	}
	return err
}

func (t *opening) finish(err error) {
	if t.end != nil {
		t.end(err)
		t.end = nil
	}
}

package route

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-llm/tandem"
)

// Drafter wraps d, called name on tickets, so that it works while its pool cannot be reached: then d returns the tree instead of
// putting a ticket, and the router submits the ticket.
func (r *Router) Drafter(name string, d tandem.Drafter) tandem.Drafter {
	return &drafter{d, name, r}
}

type drafter struct {
	tandem.Drafter
	name string
	r    *Router
}

// Propose implements tandem.Drafter.Propose. Further errors: Corrupt for an invalid tree.
func (d *drafter) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	if p.Return {
		return d.Drafter.Propose(ctx, p)
	}
	if d.r.poolUp() {
		if got, err := d.Drafter.Propose(ctx, p); !poolAway(err) {
			return got, err
		}
	}
	p.Return = true
	got, err := d.Drafter.Propose(ctx, p)
	if err != nil {
		return tandem.Proposed{}, err
	}
	if got.Tree.Len() == 0 || len(got.Tree.Parents) != got.Tree.Len() {
		return tandem.Proposed{},
			tandem.Errorf(op, tandem.Corrupt, "drafter %s was asked for a tree and returned %d tokens with %d parents",
				d.name, got.Tree.Len(), len(got.Tree.Parents))
	}
	t := p.Ticket(d.name, got.Tree)
	t.Trace = d.r.cfg.Events.Carrier(ctx)
	return got, d.submit(ctx, t)
}

// submit waits for room like a drafter does.
func (d *drafter) submit(ctx context.Context, t tandem.Ticket) error {
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		err := d.r.Submit(ctx, t)
		if tandem.KindOf(err) != tandem.Exhausted {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return tandem.Errorf(op, tandem.KindOf(ctx.Err()), "waiting for room at the verifier: %w", ctx.Err())
		}
	}
}

// poolAway reports whether err says that a drafter, alive itself, could not reach its pool.
func poolAway(err error) bool {
	var e *tandem.Error
	return errors.As(err, &e) && e.Op == "pool" && e.Kind == tandem.Unavailable
}

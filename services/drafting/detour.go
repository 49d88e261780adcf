package drafting

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-llm/tandem"
)

// Detour is a drafter that goes on while its pool cannot be reached: it asks Drafter for the tree instead
// of a ticket, and puts the ticket itself into Pool, which has another way. Safe for concurrent use.
type Detour struct {
	tandem.Drafter
	Name   string // Ticket.Drafter
	Pool   tandem.Pool
	PoolUp func() bool // reports at no cost whether the drafter's own tickets may arrive
	Events tandem.Events
}

// Propose implements tandem.Drafter.Propose.
func (d *Detour) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	if p.Return {
		return d.Drafter.Propose(ctx, p)
	}
	if d.PoolUp() {
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
		return tandem.Proposed{}, tandem.Errorf(op, tandem.Corrupt, "drafter %s was asked for a tree and returned %d tokens with %d parents", d.Name, got.Tree.Len(), len(got.Tree.Parents))
	}
	return got, d.put(ctx, tandem.Ticket{Session: p.Session, Epoch: p.Epoch, Base: p.Base, Hash: p.Hash, Drafter: d.Name, Tree: got.Tree,
		Trace: d.Events.Carrier(ctx)})
}

// put waits for room like a drafter does.
func (d *Detour) put(ctx context.Context, t tandem.Ticket) error {
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		err := d.Pool.Put(ctx, t)
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

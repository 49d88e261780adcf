package route

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-llm/tandem"
)

// Routers knows at which verifier a session is.
type Routers interface {
	// Place returns the verifier at which o's session is, or is to be opened; nil: there is none.
	Place(o tandem.Opening) *Router
	// Of returns the verifier at which a session is; nil: at none, it is to be opened again.
	Of(id tandem.SessionID) *Router
}

// Of implements Routers for a gateway with one verifier.
func (r *Router) Of(tandem.SessionID) *Router { return r }

// Place implements Routers for a gateway with one verifier.
func (r *Router) Place(tandem.Opening) *Router { return r }

// Drafter wraps d, which tickets call name. The tickets of its drafts reach the verifier that holds their session, even while the pool
// cannot be reached: then d returns the tree in place of putting a ticket, and the router submits one with it.
func Drafter(name string, d tandem.Drafter, verifiers Routers) tandem.Drafter {
	return &drafter{d, name, verifiers}
}

type drafter struct {
	tandem.Drafter
	name      string
	verifiers Routers
}

// Open implements tandem.Drafter.Open.
func (d *drafter) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	if r := d.verifiers.Place(o); r != nil {
		o.Place = r.now()
	}
	return d.Drafter.Open(ctx, o)
}

// Propose implements tandem.Drafter.Propose. Further errors: Corrupt for an invalid tree.
func (d *drafter) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	r := d.verifiers.Of(p.Session)
	if r == nil {
		return tandem.Proposed{}, tandem.Errorf(op, tandem.Unavailable, "no verifier holds session %s: it is to be opened again", p.Session)
	}
	p.Place = r.now()
	if p.Return {
		return d.Drafter.Propose(ctx, p)
	}
	if r.poolUp() {
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
	t.Trace = r.cfg.Events.Carrier(ctx)
	return got, r.submit(ctx, t)
}

// submit waits for room like a drafter does.
func (r *Router) submit(ctx context.Context, t tandem.Ticket) error {
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		err := r.Submit(ctx, t)
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

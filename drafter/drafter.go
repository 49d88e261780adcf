// Package drafter guesses what the target will say: it holds a draft model's state of many sessions,
// grows token trees for them in shared passes, and puts the trees into the pool.
//
// How a draft model is asked for trees depends on its kind, which is chosen here and nowhere else (kinds.go). Package grow is what all
// kinds share.
package drafter

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
)

// Config says what a drafter works with.
type Config = grow.Config

// DefaultTreeRows is how many tree nodes of a session the draft model's cache holds unless told otherwise; engine.PagesFor wants it.
const DefaultTreeRows = grow.DefaultTreeRows

// Drafter implements tandem.Drafter over one draft model. Safe for concurrent use.
type Drafter struct {
	draft *grow.Draft
	kind  grow.Kind
}

// New returns a drafter with its goroutine running; Shutdown ends it. Errors: Invalid for a configuration that contradicts itself or the
// model.
func New(c Config) (*Drafter, error) {
	draft, err := grow.NewDraft(c)
	if err != nil {
		return nil, err
	}
	kind, err := kindOf(draft)
	if err != nil {
		return nil, err
	}
	draft.Start(kind.Traits())
	return &Drafter{draft: draft, kind: kind}, nil
}

// Draft returns the draft model and what its sessions share, for what stands around a drafter. It is the drafter's.
func (d *Drafter) Draft() *grow.Draft { return d.draft }

// Open implements tandem.Drafter; see grow.Draft.Open.
func (d *Drafter) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	return d.draft.Open(ctx, d.kind, o)
}

// Propose implements tandem.Drafter. Further errors: Unsupported if the tokens exceed the draft model's
// context, Invalid for a proposal that contradicts itself, Exhausted if an older session needed the memory; then the session is dropped.
func (d *Drafter) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	c := &d.draft.Config
	drafting, end := c.Events.Begin(ctx, tandem.StageDraft, tandem.Attr{Key: "epoch", Int: int64(p.Epoch)},
		tandem.Attr{Key: "base", Int: int64(p.Base)}, tandem.Attr{Key: "width", Int: int64(p.Bounds.Width)},
		tandem.Attr{Key: "drafter", Str: c.Name})
	j := grow.NewJob(drafting, p)
	err := d.draft.Propose(drafting, j)
	if err == nil {
		err = j.Wait()
	}
	if err != nil {
		c.Counters.Add("drafts."+tandem.KindOf(err).String(), 1)
		end(err)
		return tandem.Proposed{}, err
	}
	_, depth := j.Tree.Depths()
	done := tandem.Proposed{Nodes: j.Tree.Len(), Depth: depth, Busy: j.Busy, Passes: j.Passes, Reused: j.Reused, Ahead: j.Ahead,
		Tree: j.Tree, Hindsight: j.Hindsight}
	end(nil, tandem.Attr{Key: "nodes", Int: int64(done.Nodes)}, tandem.Attr{Key: "depth", Int: int64(depth)},
		tandem.Attr{Key: "passes", Int: int64(done.Passes)}, tandem.Attr{Key: "reused", Int: int64(done.Reused)},
		tandem.Attr{Key: "device_ns", Int: int64(done.Busy)})
	c.Counters.Add("drafts", 1)
	c.Counters.Add("drafts.nodes", int64(done.Nodes-1))
	if p.Return {
		return done, nil
	}
	return done, grow.Send(ctx, c.Pool, c.Events, c.Counters, p.Ticket(c.Name, grow.Clone(j.Tree)))
}

// Close implements tandem.Drafter.
func (d *Drafter) Close(ctx context.Context, id tandem.SessionID) error {
	return d.draft.Sched.Do(ctx, func() error { d.draft.Sched.Close(id); return nil })
}

// CloseOwned forgets the sessions of an owner, such as a gateway that is gone. See tandem.Opening.
func (d *Drafter) CloseOwned(ctx context.Context, owner uint64) error {
	return d.draft.Sched.Do(ctx, func() error { d.draft.Sched.CloseOwned(owner); return nil })
}

// Shutdown ends all calls with Unavailable, frees all sessions and waits for the drafter's goroutine, no
// longer than ctx. The model may be closed after it has returned nil.
func (d *Drafter) Shutdown(ctx context.Context) error { return d.draft.Stop(ctx) }

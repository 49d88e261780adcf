package source

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
)

// instant is what sources have in common that need no opening and no call to another process: they draft at once, from what verdicts have
// told.
type instant struct {
	common
	self   Source
	draft  func(root tandem.Token, p tandem.Proposal) tandem.Proposed
	before bool // what its drafts cost was spent before the round, as tandem.Verdict.Guessing
}

// InPool implements Source.
func (d *instant) InPool() bool { return false }

// Usual implements Source.
func (d *instant) Usual() (time.Duration, bool) { return 0, false }

func (d *instant) pending() bool                           { return false }
func (d *instant) start(context.Context)                   { d.state = ready }
func (d *instant) tick(context.Context) bool               { return false }
func (d *instant) settle(context.Context, <-chan struct{}) {}
func (d *instant) follow(context.Context)                  {} // it knows what was committed
func (d *instant) cut(*Call, time.Duration)                {} // its calls have ended when they begin
func (d *instant) retire() <-chan struct{}                 { return nil }

// Propose implements Source.
func (d *instant) Propose(ctx context.Context, p tandem.Proposal) (round.Draft, error) {
	return d.judge(ctx, d.call(p))
}

// Begin implements Source.
func (d *instant) Begin(_ context.Context, p tandem.Proposal, ended chan<- *Call) *Call {
	c := d.call(p)
	c.done = make(chan struct{})
	close(c.done)
	ended <- c
	return c
}

func (d *instant) call(p tandem.Proposal) *Call {
	c := &Call{of: d.self, ask: d.session.ask(p), begun: time.Now()}
	c.got = d.draft(c.ask.Root, p)
	return c
}

func (d *instant) judge(ctx context.Context, c *Call) (round.Draft, error) {
	if ctx.Err() != nil {
		return round.Draft{}, ctx.Err()
	}
	if err := c.ask.Check(c.got, d.Vocab); err != nil {
		d.offend()
		return round.Draft{}, err
	}
	d.entry.Record.Conduct.Good()
	out := round.Draft{Drafter: d.Name(), Got: c.got, Begun: c.begun}
	if out.Busy = c.got.Busy; d.before {
		out.Busy, out.Guessing = 0, c.got.Busy
	}
	return out, nil
}

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
	draft  func(root tandem.Token, p tandem.Proposal) tandem.Proposed
	before bool // what its drafts cost was spent before the round, as tandem.Verdict.Guessing
}

// InPool implements Source.
func (d *instant) InPool() bool { return false }

// Usual implements Source.
func (d *instant) Usual() (time.Duration, bool) { return 0, false }

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
	c := &Call{judge: d.judge, cut: func(*Call, time.Duration) {}, ask: d.session.ask(p), begun: time.Now()}
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

// deaf is a hearer that hears nothing, for kinds to override what they hear.
type deaf struct{}

func (deaf) offers() bool                                                  { return false }
func (deaf) ask(bool) int                                                  { return 0 }
func (deaf) committed(int)                                                 {}
func (deaf) forget()                                                       {}
func (deaf) take(tandem.Guess, *bill)                                      {}
func (deaf) verdict(tandem.Tree, int, *tandem.Verdict)                     {}
func (deaf) idle(tandem.Token, tandem.Bounds) (d tandem.Proposed, ok bool) { return d, false }

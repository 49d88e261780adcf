package source

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/peer"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/spec/learn"
)

const (
	op         = "generate"
	firstPause = 50 * time.Millisecond
	longPause  = 5 * time.Second
	mostLate   = 200 * time.Millisecond // beyond the usual, a Propose is given up
	mostCuts   = 2                      // calls in a row that may be cut without a pause
	mostMissed = 2                      // tickets in a row that never came, after which a drafter is given up
	catchUp    = 32                     // a Propose with more new committed tokens than this does not count as usual
)

// process is a drafter process. An Open, and a Propose when several drafters are asked, run in goroutines of their own and report
// through task and Call.
//
//	unasked ─ wanted ▶ opening ─ ok ▶ ready ─ propose failed ▶ paused ─ retry, or it came up ▶ opening or tried
//	                     └──────── failed ───────────────────────▶┘ ◀──────── failed ───────────────┘
//	                                   ready ◀──────────────────────────────── ok ──────────────────┘
//	off ◀─ refused, violation ─ any state
//
// Its rules:
//
//  1. It blocks a round no longer than one Propose deadline, and after a failure not at all until it has
//     answered again: while it is not ready, others draft, or rounds are plain.
//  2. At most one Open is under way; the next one waits for the end of a cancelled one, so that an
//     old epoch cannot arrive after a new one. The first waits for the Close of the entry before this one.
//  3. At most one Propose is under way; until it has ended, the drafter is not asked again.
//  4. Failures in a row double the pause, so a drafter that is gone or hangs costs next to nothing.
//
// A goroutine of its own could keep the drafter open; but then two goroutines would write the epoch and
// the acknowledged length. The drafter is needed only at the start of a round, and there tick advances its state.
type process struct {
	common
	acked  tandem.Position // the drafter has the tokens [0, acked)
	task   *task           // the latest Open; nil before the first
	after  <-chan struct{} // the first Open waits for it; nil: does not wait
	call   *Call           // the latest that ran in the background; nil before the first
	reopen bool            // paused: it must open the session again before it proposes
	retry  time.Time
	pause  time.Duration   // the next one's length; 0 after a success
	pace   time.Duration   // running mean of the time of a Propose; 0 before the first
	up     <-chan struct{} // closes when the drafter comes up after the latest attempt began
	cuts   int             // calls in a row that were cut
	ahead  bool            // it was asked to draft ahead after its latest answer to a round
	node   time.Duration   // running mean of the arithmetic time of a node
	late   bool            // its first Open was not over when the session began
	last   time.Time       // when it last answered
	missed int             // rounds in a row whose ticket the drafter put, by its answer, and the verifier never saw
	silent bool            // call is only for its hindsight
}

// newProcess returns a source of any entry with a drafter. Its first Open waits for after.
func newProcess(c common, after <-chan struct{}) Source {
	p := &process{common: c, after: after}
	p.opens, p.stop = p, func() { p.cancelTask() }
	return p
}

// task is one Open. opened and err may be read once done is closed.
type task struct {
	done   chan struct{}
	err    error
	opened tandem.Opened
	held   tandem.Position
	cancel context.CancelFunc
	end    tandem.End // nil once called
}

func (t *task) finish(err error) {
	if t.end != nil {
		t.end(err)
		t.end = nil
	}
}

// start opens the session at the drafter in the background, in place of any Open under way.
func (p *process) start(ctx context.Context) {
	o, prev := p.session.Opening(), p.cancelTask()
	o.Sampling.Constraint = nil // it guesses without: a guess that is not allowed is rejected
	if prev == nil {
		prev = p.after
	}
	ctx, end := p.Events.Begin(p.session.Traced(ctx), tandem.StagePrefill, tandem.Attr{Key: "process", Str: "drafter"},
		tandem.Attr{Key: "drafter", Str: p.Name()}, tandem.Attr{Key: "epoch", Int: int64(o.Epoch)})
	ctx, cancel := context.WithCancel(ctx)
	t := &task{done: make(chan struct{}), held: tandem.Position(len(o.Tokens)), cancel: cancel, end: end}
	p.Run(func() {
		defer close(t.done)
		defer cancel()
		if prev != nil {
			<-prev
		}
		if t.err = ctx.Err(); t.err == nil {
			t.err = peer.Guard(func() (err error) {
				t.opened, err = p.open(ctx, o)
				return err
			})
		}
	})
	p.task, p.state, p.silent, p.up = t, opening, false, p.entry.Record.Up.Next()
}

// open opens the session at the drafter, for as long as that advances.
func (p *process) open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	ctx, w := peer.Watch(ctx, "drafter "+p.Name(), p.Stall)
	defer w.Stop()
	o.Progress = func(x tandem.Progress) { w.Report(x) }
	opened, err := p.entry.Drafter.Open(ctx, o)
	if err != nil && errors.Is(context.Cause(ctx), tandem.Deadline) {
		err = context.Cause(ctx)
	}
	return opened, err
}

// cancelTask gives up an Open under way and returns the channel that closes when it has ended.
func (p *process) cancelTask() <-chan struct{} {
	t := p.task
	if t == nil {
		return nil
	}
	t.cancel()
	t.finish(tandem.Errorf(op, tandem.Canceled, "drafter's prefill is no longer wanted"))
	return t.done
}

// settle waits for the Open under way until enough closes, which the end of ctx does as well.
func (p *process) settle(ctx context.Context, enough <-chan struct{}) {
	if p.state != opening {
		return
	}
	select {
	case <-p.task.done:
	case <-enough:
	}
	select {
	case <-p.task.done:
		p.collect()
	default:
		if p.late = ctx.Err() == nil; p.late {
			p.Counters.Add("drafter.late_open", 1)
		}
	}
}

// collect takes the result of an Open that has ended, and reports whether the session was opened again.
func (p *process) collect() (reopened bool) {
	t := p.task
	t.finish(t.err)
	if t.err != nil {
		p.failed(t.err, true)
		return false
	}
	if err := t.opened.Hindsight.Validate(); err != nil {
		p.offend()
		return false
	}
	reopened = p.opened
	p.state, p.acked, p.opened = ready, t.held, true
	p.session.hindsight(p.Name(), t.held, t.opened.Hindsight, 0)
	if p.entry.Record.Silent.Load() { // no session need wait to see what another has seen
		p.state, p.reopen, p.retry = paused, false, time.Now()
	}
	return reopened
}

func (p *process) tick(ctx context.Context) (reopened bool) {
	switch p.state {
	case opening:
		select {
		case <-p.task.done:
			return p.collect()
		default:
		}
	case ready:
		if p.silent && p.call.Ended() {
			p.silent = false
			_, _ = p.judge(ctx, p.call)
		}
	case tried:
		if p.call.Ended() {
			p.state = ready
			_, _ = p.judge(ctx, p.call) // which leaves ready if that is wrong
		}
	case paused:
		select {
		case <-p.up:
		default:
			if time.Now().Before(p.retry) {
				return false
			}
		}
		switch {
		case p.reopen:
			p.start(ctx)
		case p.call == nil || p.call.Ended():
			p.try(ctx)
			p.state = tried
		}
	}
	return false
}

// try asks for a smallest tree, for which no round waits.
func (p *process) try(ctx context.Context) {
	c := p.begin(p.Events.Mute(ctx), p.session.trial(), p.ProposeMax, make(chan *Call, 1))
	c.trial = true
}

func (p *process) follow(ctx context.Context) {
	if p.Ready() {
		p.try(ctx)
		p.silent = true
	}
}

func (p *process) pending() bool { return p.state == opening && !p.late }

// InPool implements Source.
func (p *process) InPool() bool { return true }

// Usual implements Source.
func (p *process) Usual() (time.Duration, bool) { return p.pace, true }

// Ready implements Source.
func (p *process) Ready() bool {
	return p.state == ready && (p.call == nil || p.call.Ended()) && !p.aside()
}

// restart makes the drafter hold the session in its new epoch.
func (p *process) restart(ctx context.Context) {
	switch p.state {
	case opening, ready:
		p.start(ctx)
	case paused, tried:
		p.state, p.reopen = paused, true
	}
}

// Judge implements Source.
func (p *process) Judge(j round.Judgement) {
	switch j {
	case round.Arrived:
		p.missed = 0
	case round.Missed: // once may be chance, because tickets can be lost
		if p.missed++; p.missed == mostMissed {
			p.offend()
		}
	default:
		p.common.Judge(j)
	}
}

func (p *process) retire() <-chan struct{} {
	opened := p.cancelTask()
	if opened == nil {
		return nil
	}
	if p.call != nil {
		p.call.cancel()
	}
	p.state = off
	done := make(chan struct{})
	p.Run(func() {
		defer close(done)
		<-opened // an Open that overtook the Close would hold the session for ever
		p.Closer.Close(p.session.Text.Session, p.entry.Drafter.Close)
	})
	return done
}

// failed decides how the session goes on with the drafter after an error of Open or Propose.
func (p *process) failed(err error, opening bool) {
	kind := tandem.KindOf(err)
	p.Counters.Add("drafter."+kind.String(), 1)
	first := p.pause == 0
	switch kind {
	case tandem.Invalid, tandem.Unsupported:
		p.state = off // it would refuse again
	case tandem.Corrupt: // its answer could not be read
		p.offend()
	case tandem.Deadline, tandem.Exhausted:
		p.rest(opening)
	default:
		p.rest(true)
	}
	if (kind == tandem.UnknownSession || kind == tandem.Stale) && first {
		p.retry = time.Now() // it runs, but does not know the session
	}
}

// rest leaves the drafter alone for a while, after which it must open the session again if reopen is set.
func (p *process) rest(reopen bool) {
	p.state, p.reopen = paused, reopen
	p.retry = time.Now().Add(max(p.pause, firstPause))
	p.pause = min(max(2*p.pause, firstPause), longPause)
}

// deadline is ten times the usual time of a Propose, within bounds, and at most so much more than usual as mostLate and a node for each
// token that it has to read first and may draft take, so that the loss of a drafter is not felt. A session without figures of its own uses
// those of others.
func (p *process) deadline(q tandem.Proposal) time.Duration {
	pace := p.pace
	if pace == 0 {
		pace = time.Duration(p.entry.Record.Pace.Load())
	}
	if pace == 0 {
		return p.ProposeMax
	}
	late := mostLate + time.Duration(len(q.Suffix)+q.Bounds.Depth)*p.node
	return min(max(min(10*pace, pace+late), p.ProposeMin), p.ProposeMax)
}

// Propose implements Source.
func (p *process) Propose(ctx context.Context, q tandem.Proposal) (round.Draft, error) {
	c := &Call{judge: p.judge, cut: p.cut, ask: p.complete(q), begun: time.Now()}
	limited, cancel := context.WithTimeout(ctx, p.deadline(c.ask.Proposal))
	defer cancel()
	p.up = p.entry.Record.Up.Next()
	c.got, c.err = p.entry.Drafter.Propose(limited, c.ask.Proposal)
	c.took = time.Since(c.begun)
	return p.judge(ctx, c)
}

// complete adds to a proposal the tokens that the drafter does not have.
func (p *process) complete(q tandem.Proposal) round.Ask {
	q.From, q.Suffix = p.acked, p.session.Text.Tokens[p.acked:q.Base:q.Base]
	return p.session.ask(q)
}

// Begin implements Source.
func (p *process) Begin(ctx context.Context, q tandem.Proposal, ended chan<- *Call) *Call {
	return p.begin(ctx, q, 0, ended)
}

// begin asks in the background, for as long as limit says; 0: as long as a round waits.
func (p *process) begin(ctx context.Context, q tandem.Proposal, limit time.Duration, ended chan<- *Call) *Call {
	c := &Call{judge: p.judge, cut: p.cut, ask: p.complete(q), done: make(chan struct{})}
	if limit == 0 {
		limit = p.deadline(c.ask.Proposal)
	}
	var limited context.Context
	limited, c.cancel = context.WithTimeout(ctx, limit)
	p.up = p.entry.Record.Up.Next()
	p.call, p.silent = c, false
	p.Run(func() {
		defer c.cancel()
		c.begun = time.Now()
		c.err = peer.Guard(func() (err error) {
			c.got, err = p.entry.Drafter.Propose(limited, c.ask.Proposal)
			return err
		})
		c.took = time.Since(c.begun)
		close(c.done)
		ended <- c
	})
	return c
}

// cut gives up a call that has taken took so far while the others have long answered. Once may be chance; a drafter that is late again
// and again is asked ever less often, as if it did not answer at all.
func (p *process) cut(c *Call, took time.Duration) {
	c.cancel()
	p.Counters.Add("drafter.cut_off", 1)
	p.pace = learn.Mean(p.pace, took)
	if p.cuts++; p.cuts > mostCuts {
		p.rest(false)
	}
}

// judge evaluates a call that has ended.
func (p *process) judge(ctx context.Context, c *Call) (round.Draft, error) {
	if ctx.Err() != nil {
		return round.Draft{}, ctx.Err() // the request has ended; the drafter is not to blame
	}
	usual, lagging := p.pace, len(c.ask.Suffix) > catchUp || c.trial
	if c.err == nil && !(lagging && usual > 0) || tandem.KindOf(c.err) == tandem.Deadline {
		p.pace = learn.Mean(p.pace, c.took)
		p.entry.Record.Pace.Store(int64(p.pace))
	}
	p.entry.Record.Silent.Store(tandem.KindOf(c.err) == tandem.Deadline)
	if c.err != nil {
		p.failed(c.err, false)
		return round.Draft{}, c.err
	}
	p.acked, p.pause, p.cuts = c.ask.Base, 0, 0
	if err := c.ask.Check(c.got, p.Vocab); err != nil {
		p.offend()
		return round.Draft{}, err
	}
	p.entry.Record.Conduct.Good()
	spent := time.Duration(0)
	if c.trial && c.got.Passes > 0 {
		spent = c.got.Busy
	}
	p.session.hindsight(p.Name(), c.ask.Base, c.got.Hindsight, spent)
	out := round.Draft{Drafter: p.Name(), Got: c.got, Busy: c.got.Busy, Begun: c.begun, Last: p.last}
	p.last = c.begun.Add(c.took)
	if lagging && usual > 0 {
		out.Extra = max(c.took-usual, 0)
	}
	if !c.trial {
		out.Away = max(c.took-c.got.Busy-out.Extra, 0)
		out.Tried, p.ahead = p.ahead, c.ask.Ahead
		out.Useful = p.useful(c.got)
	}
	return out, nil
}

// useful returns how much of the arithmetic that went into drafting ahead was of use: a reused node counts as much as a node drafted within
// the round costs, at most what was spent ahead.
func (p *process) useful(got tandem.Proposed) time.Duration {
	if fresh := got.Nodes - 1 - got.Reused; fresh > 0 && got.Busy > 0 {
		p.node = learn.Mean(p.node, got.Busy/time.Duration(fresh))
	}
	switch {
	case got.Reused == 0:
		return 0
	case p.node > 0:
		return min(got.Ahead, time.Duration(got.Reused)*p.node)
	}
	return got.Ahead
}

package gateway

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/spec/learn"
)

// draftState is where a session stands with one drafter.
type draftState uint8

const (
	draftNew     draftState = iota // nobody has wanted it yet
	draftOpening                   // an Open is under way
	draftReady                     // it holds the session
	draftPaused                    // it failed; to be tried again at retry
	draftTried                     // a Propose that no round waits for shows whether it answers again
	draftOff                       // given up for this session
)

// draftStates words the states, for people.
var draftStates = [...]string{draftNew: "not asked yet", draftOpening: "opening", draftReady: "busy", draftPaused: "paused after a failure",
	draftTried: "tried again", draftOff: "given up"}

const (
	firstPause = 50 * time.Millisecond
	longPause  = 5 * time.Second
	mostLate   = 200 * time.Millisecond // beyond the usual, a Propose is given up
	mostCuts   = 2                      // calls in a row that may be cut without a pause
	mostMissed = 2                      // tickets in a row that never came, after which a drafter is given up
	catchUp    = 32                     // more committed tokens than these at once are not the usual Propose
)

// drafting is a session's side of one drafter, for one life of it. It belongs to the session's
// goroutine; an Open, and a Propose that others are asked beside, run in goroutines of their own and
// report through opening and call.
//
//		new ─ wanted ▶ opening ─ ok ▶ ready ─ propose failed ▶ paused ─ retry, or it came up ▶ opening or tried
//		                  └──────── failed ───────────────────────▶┘ ◀──────── failed ───────────────┘
//		                                ready ◀──────────────────────────────── ok ──────────────────┘
//		off ◀─ refused, violation ─ any state
//
//	 1. It never blocks a round longer than one Propose deadline, and after a failure not at all until it has
//	    answered again: while it is not ready, others draft, or rounds are plain.
//	 2. At most one Open is under way; the next one waits for the end of a cancelled one, so that an
//	    old epoch cannot arrive after a new one. The first waits for the Close of a life before this one.
//	 3. At most one Propose is under way; until it has ended, the drafter is not asked again.
//	 4. Failures in a row double the pause, so a drafter that is gone or hangs costs next to nothing.
//
// The session could as well run a goroutine that keeps the drafter open; but then two goroutines
// would write the epoch and the acknowledged length, for a drafter that is needed only at the start
// of a round, which is where tick looks after it.
type drafting struct {
	g      *Gateway
	spans  *spans
	of     *roster.Life
	state  draftState
	acked  tandem.Position // the drafter was last told the tokens [0, acked)
	task   *opening        // the latest; nil before the first
	after  <-chan struct{} // the first Open waits for it; nil: for nothing
	call   *call           // the latest that ran beside others; nil before the first
	opened bool            // it held the session once
	reopen bool            // paused: it must open the session again before it proposes
	retry  time.Time
	pause  time.Duration   // the next one's length; 0 after a success
	pace   time.Duration   // running mean of the time of a Propose; 0 before the first
	up     <-chan struct{} // closes when the drafter comes up after the latest attempt began
	cuts   int             // calls in a row that were cut
	went   bool            // it was to go on ahead after its latest answer
	node   time.Duration   // running mean of the arithmetic that a node costs
	late   bool            // its first Open was not over when the session began
	told   time.Time       // when it has answered last
	missed int             // rounds in a row whose ticket it said to have put and the verifier never saw
	follow bool            // call is for nothing but what it says of the text
	hear   func(*drafting, tandem.Position, tandem.Hindsight, time.Duration)
}

// opening is one Open of the drafter. err may be read once done is closed.
type opening struct {
	done   chan struct{}
	err    error
	opened tandem.Opened
	held   tandem.Position
	cancel context.CancelFunc
	end    tandem.End // nil once called
}

// start opens the session at the drafter in the background, in place of any Open under way.
func (d *drafting) start(ctx context.Context, o tandem.Opening) {
	prev := d.cancelTask()
	if prev == nil {
		prev = d.after
	}
	ctx = d.spans.open(ctx, d.g.cfg.Events)
	begun, end := d.g.cfg.Events.Begin(ctx, tandem.StagePrefill, text("process", "drafter"), text("drafter", d.of.Name), number("epoch", int(o.Epoch)))
	begun, cancel := context.WithTimeout(begun, d.g.cfg.Timeouts.Open)
	t := &opening{done: make(chan struct{}), held: tandem.Position(len(o.Tokens)), cancel: cancel, end: end}
	d.g.crew.run(func() {
		defer close(t.done)
		defer cancel()
		if prev != nil {
			<-prev
		}
		if t.err = begun.Err(); t.err == nil {
			t.err = guard(func() (err error) {
				t.opened, err = d.of.Drafter.Open(begun, o)
				return err
			})
		}
	})
	d.task, d.state, d.follow, d.up = t, draftOpening, false, d.of.Seat.Up.Next()
}

// cancelTask gives up an Open under way and returns the channel that closes when it has ended.
func (d *drafting) cancelTask() <-chan struct{} {
	t := d.task
	if t == nil {
		return nil
	}
	t.cancel()
	t.finish(tandem.Errorf(op, tandem.Canceled, "drafter's prefill is no longer wanted"))
	return t.done
}

func (t *opening) finish(err error) {
	if t.end != nil {
		t.end(err)
		t.end = nil
	}
}

// settle waits for the Open under way until it is enough, which the end of ctx is as well.
func (d *drafting) settle(ctx context.Context, enough <-chan struct{}) {
	if d.state != draftOpening {
		return
	}
	select {
	case <-d.task.done:
	case <-enough:
	}
	select {
	case <-d.task.done:
		d.collect()
	default:
		if d.late = ctx.Err() == nil; d.late {
			d.g.cfg.Counters.Add("drafter.late_open", 1)
		}
	}
}

// collect takes the result of an Open that has ended, and reports whether it rebuilt the session.
func (d *drafting) collect() (rebuilt bool) {
	t := d.task
	t.finish(t.err)
	if t.err != nil {
		d.failed(t.err, true)
		return false
	}
	if err := t.opened.Hindsight.Validate(); err != nil {
		d.offend()
		return false
	}
	rebuilt = d.opened
	d.state, d.acked, d.opened = draftReady, t.held, true
	d.hear(d, t.held, t.opened.Hindsight, 0)
	if d.of.Seat.Silent.Load() { // no session need wait to see what another has seen
		d.state, d.reopen, d.retry = draftPaused, false, time.Now()
	}
	return rebuilt
}

// tick takes the drafter's state forward at the start of a round, and reports whether a session was
// rebuilt. o describes the session as it is now; try wishes for a smallest tree, returned.
func (d *drafting) tick(ctx context.Context, o func() tandem.Opening, try func(*drafting) wish) (rebuilt bool) {
	switch d.state {
	case draftOpening:
		select {
		case <-d.task.done:
			return d.collect()
		default:
		}
	case draftReady:
		if d.follow && d.call.ended() {
			d.follow = false
			_, _ = d.judge(ctx, d.call)
		}
	case draftTried:
		if d.call.ended() {
			d.state = draftReady
			_, _ = d.judge(ctx, d.call) // which leaves ready if that is wrong
		}
	case draftPaused:
		select {
		case <-d.up:
		default:
			if time.Now().Before(d.retry) {
				return false
			}
		}
		switch {
		case d.reopen:
			d.start(ctx, o())
		case d.call == nil || d.call.ended():
			d.begin(d.g.cfg.Events.Mute(ctx), try(d), d.g.cfg.Timeouts.ProposeMax, make(chan *call, 1))
			d.state = draftTried
		}
	}
	return false
}

// ready reports whether the drafter can be asked for a tree now.
func (d *drafting) ready() bool {
	return d.state == draftReady && (d.call == nil || d.call.ended()) && !d.of.Seat.Conduct.Aside()
}

// wish is a proposal and what the answer to it is checked against.
type wish struct {
	tandem.Proposal
	root  tandem.Token // the committed token at Base-1
	nodes int          // no tree has more
	trial bool         // asked only to see whether it is answered
}

// draft is what one drafter made of a round.
type draft struct {
	by    *drafting
	got   tandem.Proposed
	ahead bool          // it was to go on ahead after this
	begun time.Time     // when it was asked
	last  time.Time     // when it had answered before; zero: never
	extra time.Duration // what it took longer than usual because it had to catch up first
}

// call is one Propose. got, err, begun and took may be read once done is closed.
type call struct {
	d      *drafting
	wish   wish
	done   chan struct{}
	got    tandem.Proposed
	err    error
	begun  time.Time
	took   time.Duration
	cancel context.CancelFunc
}

// propose asks for one tree and waits for it. A nil error means that the drafter has kept its
// contract and a ticket is in the pool, even if it holds the root alone.
func (d *drafting) propose(ctx context.Context, w wish) (draft, error) {
	limited, cancel := context.WithTimeout(ctx, d.deadline())
	defer cancel()
	d.up = d.of.Seat.Up.Next()
	c := &call{d: d, wish: w, begun: time.Now()}
	c.got, c.err = d.of.Drafter.Propose(limited, w.Proposal)
	c.took = time.Since(c.begun)
	return d.judge(ctx, c)
}

// begin asks for one tree in the background, within limit; told receives the call when it has ended.
func (d *drafting) begin(ctx context.Context, w wish, limit time.Duration, told chan<- *call) *call {
	limited, cancel := context.WithTimeout(ctx, limit)
	d.up = d.of.Seat.Up.Next()
	c := &call{d: d, wish: w, done: make(chan struct{}), cancel: cancel}
	d.call, d.follow = c, false
	d.g.crew.run(func() {
		defer cancel()
		c.begun = time.Now()
		c.err = guard(func() (err error) {
			c.got, err = d.of.Drafter.Propose(limited, w.Proposal)
			return err
		})
		c.took = time.Since(c.begun)
		close(c.done)
		told <- c
	})
	return c
}

func (c *call) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// cut gives a call up that has taken took so far while the others have long answered. Once can be chance;
// a drafter that is late again and again is asked ever less often, as if it did not answer at all.
func (c *call) cut(took time.Duration) {
	c.cancel()
	d := c.d
	d.g.cfg.Counters.Add("drafter.cut_off", 1)
	d.pace = learn.Mean(d.pace, took)
	if d.cuts++; d.cuts > mostCuts {
		d.rest(false)
	}
}

// judge takes what came of a call that has ended.
func (d *drafting) judge(ctx context.Context, c *call) (draft, error) {
	if ctx.Err() != nil {
		return draft{}, ctx.Err() // the request has ended; that says nothing about the drafter
	}
	usual, lagging := d.pace, len(c.wish.Suffix) > catchUp || c.wish.trial
	if c.err == nil && !(lagging && usual > 0) || tandem.KindOf(c.err) == tandem.Deadline {
		d.pace = learn.Mean(d.pace, c.took)
		d.of.Seat.Pace.Store(int64(d.pace))
	}
	d.of.Seat.Silent.Store(tandem.KindOf(c.err) == tandem.Deadline)
	if c.err != nil {
		d.failed(c.err, false)
		return draft{}, c.err
	}
	d.acked, d.pause, d.cuts = c.wish.Base, 0, 0
	if err := sound(c.wish, c.got, d.g.cfg.Vocab.Size()); err != nil {
		d.offend()
		return draft{}, err
	}
	d.of.Seat.Conduct.Good()
	spent := time.Duration(0)
	if c.wish.trial {
		spent = c.got.Busy
	}
	d.hear(d, c.wish.Base, c.got.Hindsight, spent)
	out := draft{by: d, got: c.got, ahead: c.wish.Ahead, begun: c.begun, last: d.told}
	d.told = c.begun.Add(c.took)
	if lagging && usual > 0 {
		out.extra = max(c.took-usual, 0)
	}
	return out, nil
}

// sound checks what a drafter says against what any drafter may say. A tree that it has put into the
// pool itself need not come with the answer.
func sound(w wish, got tandem.Proposed, vocab int) error {
	const op = "propose"
	switch {
	case got.Nodes < 1 || got.Nodes > w.nodes:
		return tandem.Errorf(op, tandem.Corrupt, "drafter says %d nodes: want 1 to %d", got.Nodes, w.nodes)
	case got.Depth < 0 || got.Depth >= got.Nodes:
		return tandem.Errorf(op, tandem.Corrupt, "drafter says depth %d with %d nodes: want 0 to %d", got.Depth, got.Nodes, got.Nodes-1)
	case got.Busy < 0 || got.Ahead < 0 || got.Reused < 0 || got.Reused >= got.Nodes:
		return tandem.Errorf(op, tandem.Corrupt, "drafter says busy %v, ahead %v, %d of %d nodes reused: want none below 0", got.Busy, got.Ahead, got.Reused, got.Nodes)
	}
	if err := got.Hindsight.Validate(); err != nil || got.Tree.Tokens == nil && !w.Return {
		return err
	}
	if err := got.Tree.Validate(w.nodes, vocab); err != nil {
		return err
	}
	if got.Tree.Tokens[0] != w.root || got.Tree.Len() != got.Nodes {
		return tandem.Errorf(op, tandem.Corrupt, "tree of %d nodes with root %d: want the %d nodes that it is said to have, and token %d, committed at %d",
			got.Tree.Len(), got.Tree.Tokens[0], got.Nodes, w.root, w.Base-1)
	}
	for i, lp := range got.Tree.LogProbs {
		if !(lp <= 1e-3) {
			return tandem.Errorf(op, tandem.Corrupt, "node %d has log-probability %v: want at most 0", i, lp)
		}
	}
	return nil
}

// deadline is ten times the usual time of a Propose, within bounds, and never so much more than usual
// that the loss of a drafter would be felt. Where this session knows nothing, what others know counts.
func (d *drafting) deadline() time.Duration {
	t, pace := d.g.cfg.Timeouts, d.pace
	if pace == 0 {
		pace = time.Duration(d.of.Seat.Pace.Load())
	}
	if pace == 0 {
		return t.ProposeMax
	}
	return min(max(min(10*pace, pace+mostLate), t.ProposeMin), t.ProposeMax)
}

// failed decides what an error of Open or Propose means for the rounds to come.
func (d *drafting) failed(err error, opening bool) {
	kind := tandem.KindOf(err)
	d.g.cfg.Counters.Add("drafter."+kind.String(), 1)
	first := d.pause == 0
	switch kind {
	case tandem.Invalid, tandem.Unsupported:
		d.state = draftOff // it would refuse again
	case tandem.Corrupt: // its answer could not be read
		d.offend()
	case tandem.Deadline, tandem.Exhausted:
		d.rest(opening)
	default:
		d.rest(true)
	}
	if (kind == tandem.UnknownSession || kind == tandem.Stale) && first {
		d.retry = time.Now() // it lives, it merely does not know the session
	}
}

// rest leaves the drafter alone for a while, after which it must open the session again if reopen is set.
func (d *drafting) rest(reopen bool) {
	d.state, d.reopen = draftPaused, reopen
	d.retry = time.Now().Add(max(d.pause, firstPause))
	d.pause = min(max(2*d.pause, firstPause), longPause)
}

// restart makes the drafter hold the session as o says, which has a new epoch.
func (d *drafting) restart(ctx context.Context, o tandem.Opening) {
	switch d.state {
	case draftOpening, draftReady:
		d.start(ctx, o)
	case draftPaused, draftTried:
		d.state, d.reopen = draftPaused, true
	}
}

// offend gives the drafter up for this session because it sent garbage, and counts that against it.
func (d *drafting) offend() {
	d.g.cfg.Counters.Add("drafter.garbage", 1)
	if d.of.Seat.Conduct.Offend(time.Now()) {
		d.g.cfg.Counters.Add("drafter.put_aside", 1)
	}
	d.quarantine()
}

// miss takes a round that the drafter said to have put a ticket for, in vain: the verifier answered only the
// gateway's own. Once can be chance, for tickets may be lost; after mostMissed in a row it is garbage.
func (d *drafting) miss() {
	if d.missed++; d.missed == mostMissed {
		d.offend()
	}
}

// quarantine gives the drafter up for this session.
func (d *drafting) quarantine() {
	if d.state == draftOff {
		return
	}
	d.state = draftOff
	d.g.cfg.Counters.Add("drafter.quarantined", 1)
	d.cancelTask()
}

// retire ends the session at this drafter, in the background: nobody need wait. It returns the channel
// that closes when that is done, nil if the drafter never heard of the session.
func (d *drafting) retire(id tandem.SessionID) <-chan struct{} {
	opened := d.cancelTask()
	if opened == nil {
		return nil
	}
	if d.call != nil {
		d.call.cancel()
	}
	d.state = draftOff
	done := make(chan struct{})
	d.g.crew.run(func() {
		defer close(done)
		<-opened // an Open that overtook the Close would hold the session for ever
		d.g.shut(id, d.of.Drafter.Close)
	})
	return done
}

package gateway

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/spec/learn"
)

// liaisonState is where a session stands with one drafter.
type liaisonState uint8

const (
	liaisonNew     liaisonState = iota // not wanted yet
	liaisonOpening                     // an Open is under way
	liaisonReady                       // it holds the session
	liaisonPaused                      // it failed; to be tried again at retry
	liaisonTried                       // a trial Propose, for which no round waits, shows whether it answers again
	liaisonOff                         // given up for this session
)

// liaisonStates has the states' human-readable names.
var liaisonStates = [...]string{liaisonNew: "not asked yet", liaisonOpening: "opening", liaisonReady: "busy",
	liaisonPaused: "paused after a failure", liaisonTried: "tried again", liaisonOff: "given up"}

const (
	firstPause = 50 * time.Millisecond
	longPause  = 5 * time.Second
	mostLate   = 200 * time.Millisecond // beyond the usual, a Propose is given up
	mostCuts   = 2                      // calls in a row that may be cut without a pause
	mostMissed = 2                      // tickets in a row that never came, after which a drafter is given up
	catchUp    = 32                     // a Propose with more new committed tokens than this does not count as usual
)

// liaison is what a session keeps about one drafter, from its Enlist to its Dismiss. It belongs to the session's
// goroutine; an Open, and a Propose when several drafters are asked, run in goroutines of their own and
// report through opening and call.
//
//		new ─ wanted ▶ opening ─ ok ▶ ready ─ propose failed ▶ paused ─ retry, or it came up ▶ opening or tried
//		                  └──────── failed ───────────────────────▶┘ ◀──────── failed ───────────────┘
//		                                ready ◀──────────────────────────────── ok ──────────────────┘
//		off ◀─ refused, violation ─ any state
//
//	 1. It blocks a round no longer than one Propose deadline, and after a failure not at all until it has
//	    answered again: while it is not ready, others draft, or rounds are plain.
//	 2. At most one Open is under way; the next one waits for the end of a cancelled one, so that an
//	    old epoch cannot arrive after a new one. The first waits for the Close of a life before this one.
//	 3. At most one Propose is under way; until it has ended, the drafter is not asked again.
//	 4. Failures in a row double the pause, so a drafter that is gone or hangs costs next to nothing.
//	 5. One of the target's own ways needs no opening and no call: it is ready whenever it has a guess on the tokens to come.
//
// A goroutine of its own could keep the drafter open; but then two goroutines would write the epoch and
// the acknowledged length. The drafter is needed only at the start of a round, and there tick looks
// after it.
type liaison struct {
	g      *Gateway
	spans  *spans
	of     *roster.Life
	state  liaisonState
	acked  tandem.Position // the drafter was last told the tokens [0, acked)
	task   *opening        // the latest; nil before the first
	after  <-chan struct{} // the first Open waits for it; nil: does not wait
	call   *call           // the latest that ran beside others; nil before the first
	opened bool            // it has held the session
	reopen bool            // paused: it must open the session again before it proposes
	retry  time.Time
	pause  time.Duration   // the next one's length; 0 after a success
	pace   time.Duration   // running mean of the time of a Propose; 0 before the first
	up     <-chan struct{} // closes when the drafter comes up after the latest attempt began
	cuts   int             // calls in a row that were cut
	went   bool            // it was asked to work ahead after its latest answer
	node   time.Duration   // running mean of the arithmetic time of a node
	late   bool            // its first Open was not over when the session began
	told   time.Time       // when it last answered
	missed int             // rounds in a row whose ticket it said to have put and the verifier never saw
	follow bool            // call is only for its hindsight

	guess     *guess           // of one of the target's own ways: for the round to come; nil: none. The fields below are its as well
	hindsight tandem.Hindsight // on the latest tokens that it guessed without a gap
	lengths   []float64        // see expected
	nodes     int              // as the session's
	sampled   bool             // the session's temperature is above 0

	hear func(*liaison, tandem.Position, tandem.Hindsight, time.Duration)
}

// start opens the session at the drafter in the background, in place of any Open under way.
func (l *liaison) start(ctx context.Context, o tandem.Opening) {
	prev := l.cancelTask()
	if prev == nil {
		prev = l.after
	}
	ctx = l.spans.open(ctx, l.g.cfg.Events)
	begun, end := l.g.cfg.Events.Begin(ctx, tandem.StagePrefill, text("process", "drafter"), text("drafter", l.of.Name),
		number("epoch", int(o.Epoch)))
	begun, cancel := context.WithCancel(begun)
	t := &opening{done: make(chan struct{}), held: tandem.Position(len(o.Tokens)), cancel: cancel, end: end}
	l.g.crew.run(func() {
		defer close(t.done)
		defer cancel()
		if prev != nil {
			<-prev
		}
		if t.err = begun.Err(); t.err == nil {
			t.err = guard(func() error { return t.open(begun, l, o) })
		}
	})
	l.task, l.state, l.follow, l.up = t, liaisonOpening, false, l.of.Seat.Up.Next()
}

// cancelTask gives up an Open under way and returns the channel that closes when it has ended.
func (l *liaison) cancelTask() <-chan struct{} {
	t := l.task
	if t == nil {
		return nil
	}
	t.cancel()
	t.finish(tandem.Errorf(op, tandem.Canceled, "drafter's prefill is no longer wanted"))
	return t.done
}

// settle waits for the Open under way until it is enough, which the end of ctx is as well.
func (l *liaison) settle(ctx context.Context, enough <-chan struct{}) {
	if l.state != liaisonOpening {
		return
	}
	select {
	case <-l.task.done:
	case <-enough:
	}
	select {
	case <-l.task.done:
		l.collect()
	default:
		if l.late = ctx.Err() == nil; l.late {
			l.g.cfg.Counters.Add("drafter.late_open", 1)
		}
	}
}

// collect takes the result of an Open that has ended, and reports whether it rebuilt the session.
func (l *liaison) collect() (rebuilt bool) {
	t := l.task
	t.finish(t.err)
	if t.err != nil {
		l.failed(t.err, true)
		return false
	}
	if err := t.opened.Hindsight.Validate(); err != nil {
		l.offend()
		return false
	}
	rebuilt = l.opened
	l.state, l.acked, l.opened = liaisonReady, t.held, true
	l.hear(l, t.held, t.opened.Hindsight, 0)
	if l.of.Seat.Silent.Load() { // no session need wait to see what another has seen
		l.state, l.reopen, l.retry = liaisonPaused, false, time.Now()
	}
	return rebuilt
}

// tick advances the drafter's state at the start of a round, and reports whether a session was
// rebuilt. o describes the session as it is now; try returns a wish for a smallest tree that is returned.
func (l *liaison) tick(ctx context.Context, o func() tandem.Opening, try func(*liaison) wish) (rebuilt bool) {
	switch l.state {
	case liaisonOpening:
		select {
		case <-l.task.done:
			return l.collect()
		default:
		}
	case liaisonReady:
		if l.follow && l.call.ended() {
			l.follow = false
			_, _ = l.judge(ctx, l.call)
		}
	case liaisonTried:
		if l.call.ended() {
			l.state = liaisonReady
			_, _ = l.judge(ctx, l.call) // which leaves ready if that is wrong
		}
	case liaisonPaused:
		select {
		case <-l.up:
		default:
			if time.Now().Before(l.retry) {
				return false
			}
		}
		switch {
		case l.reopen:
			l.start(ctx, o())
		case l.call == nil || l.call.ended():
			l.begin(l.g.cfg.Events.Mute(ctx), try(l), l.g.cfg.Timeouts.ProposeMax, make(chan *call, 1))
			l.state = liaisonTried
		}
	}
	return false
}

// ready reports whether the drafter can be asked for a tree now.
func (l *liaison) ready() bool {
	if l.of.Way != nil {
		return l.state != liaisonOff && l.guess != nil && !l.of.Seat.Conduct.Aside()
	}
	return l.state == liaisonReady && (l.call == nil || l.call.ended()) && !l.of.Seat.Conduct.Aside()
}

// wish is a proposal and what the answer to it is checked against.
type wish struct {
	tandem.Proposal
	root  tandem.Token // the committed token at Base-1
	nodes int          // no tree has more
	trial bool         // asked only to see whether it is answered
}

// draft is what one drafter drafted for a round.
type draft struct {
	by    *liaison
	got   tandem.Proposed
	ahead bool          // it was asked to work ahead after this
	begun time.Time     // when it was asked
	last  time.Time     // when it answered before this; zero: never
	extra time.Duration // what it took longer than usual because it had to catch up first
}

// call is one Propose. got, err, begun and took may be read once done is closed.
type call struct {
	of     *liaison
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
func (l *liaison) propose(ctx context.Context, w wish) (draft, error) {
	limited, cancel := context.WithTimeout(ctx, l.deadline())
	defer cancel()
	l.up = l.of.Seat.Up.Next()
	c := &call{of: l, wish: w, begun: time.Now()}
	if l.of.Way != nil {
		c.got = l.draw(w)
	} else {
		c.got, c.err = l.of.Drafter.Propose(limited, w.Proposal)
	}
	c.took = time.Since(c.begun)
	return l.judge(ctx, c)
}

// begin asks for one tree in the background, within limit; told receives the call when it has ended.
func (l *liaison) begin(ctx context.Context, w wish, limit time.Duration, told chan<- *call) *call {
	limited, cancel := context.WithTimeout(ctx, limit)
	l.up = l.of.Seat.Up.Next()
	c := &call{of: l, wish: w, done: make(chan struct{}), cancel: cancel}
	l.call, l.follow = c, false
	if l.of.Way != nil {
		c.begun, c.got = time.Now(), l.draw(w)
		close(c.done)
		told <- c
		cancel()
		return c
	}
	l.g.crew.run(func() {
		defer cancel()
		c.begun = time.Now()
		c.err = guard(func() (err error) {
			c.got, err = l.of.Drafter.Propose(limited, w.Proposal)
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

// cut gives up a call that has taken took so far while the others have long answered. Once may be chance;
// a drafter that is late again and again is asked ever less often, as if it did not answer at all.
func (c *call) cut(took time.Duration) {
	c.cancel()
	l := c.of
	l.g.cfg.Counters.Add("drafter.cut_off", 1)
	l.pace = learn.Mean(l.pace, took)
	if l.cuts++; l.cuts > mostCuts {
		l.rest(false)
	}
}

// judge evaluates a call that has ended.
func (l *liaison) judge(ctx context.Context, c *call) (draft, error) {
	if ctx.Err() != nil {
		return draft{}, ctx.Err() // the request has ended; that says nothing about the drafter
	}
	usual, lagging := l.pace, len(c.wish.Suffix) > catchUp || c.wish.trial
	if c.err == nil && !(lagging && usual > 0) || tandem.KindOf(c.err) == tandem.Deadline {
		l.pace = learn.Mean(l.pace, c.took)
		l.of.Seat.Pace.Store(int64(l.pace))
	}
	l.of.Seat.Silent.Store(tandem.KindOf(c.err) == tandem.Deadline)
	if c.err != nil {
		l.failed(c.err, false)
		return draft{}, c.err
	}
	l.acked, l.pause, l.cuts = c.wish.Base, 0, 0
	if err := sound(c.wish, c.got, l.g.cfg.Vocab.Size()); err != nil {
		l.offend()
		return draft{}, err
	}
	l.of.Seat.Conduct.Good()
	spent := time.Duration(0)
	if c.wish.trial {
		spent = c.got.Busy
	}
	if l.of.Way == nil {
		l.hear(l, c.wish.Base, c.got.Hindsight, spent)
	}
	out := draft{by: l, got: c.got, ahead: c.wish.Ahead, begun: c.begun, last: l.told}
	l.told = c.begun.Add(c.took)
	if lagging && usual > 0 {
		out.extra = max(c.took-usual, 0)
	}
	return out, nil
}

// sound checks a drafter's answer against the contract of Propose. A tree that the drafter has put into the
// pool itself need not come with the answer.
func sound(w wish, got tandem.Proposed, vocab int) error {
	const op = "propose"
	switch {
	case got.Nodes < 1 || got.Nodes > w.nodes:
		return tandem.Errorf(op, tandem.Corrupt, "drafter says %d nodes: want 1 to %d", got.Nodes, w.nodes)
	case got.Depth < 0 || got.Depth >= got.Nodes:
		return tandem.Errorf(op, tandem.Corrupt, "drafter says depth %d with %d nodes: want 0 to %d", got.Depth, got.Nodes, got.Nodes-1)
	case got.Busy < 0 || got.Ahead < 0 || got.Reused < 0 || got.Reused >= got.Nodes:
		return tandem.Errorf(op, tandem.Corrupt, "drafter says busy %v, ahead %v, %d of %d nodes reused: want none below 0", got.Busy,
			got.Ahead, got.Reused, got.Nodes)
	}
	if err := got.Hindsight.Validate(); err != nil || got.Tree.Tokens == nil && !w.Return {
		return err
	}
	if n := got.Tree.Prompts; n != 0 {
		return tandem.Errorf(op, tandem.Corrupt, "tree with %d prompt nodes: want none, the gateway places them", n)
	}
	if err := got.Tree.Validate(w.nodes, vocab); err != nil {
		return err
	}
	if got.Tree.Tokens[0] != w.root || got.Tree.Len() != got.Nodes {
		return tandem.Errorf(op, tandem.Corrupt,
			"tree of %d nodes with root %d: want the %d nodes that it is said to have, and token %d, committed at %d",
			got.Tree.Len(), got.Tree.Tokens[0], got.Nodes, w.root, w.Base-1)
	}
	for i, lp := range got.Tree.LogProbs {
		if !(lp <= 1e-3) {
			return tandem.Errorf(op, tandem.Corrupt, "node %d has log-probability %v: want at most 0", i, lp)
		}
	}
	return nil
}

// deadline is ten times the usual time of a Propose, within bounds, and at most mostLate more than usual, so that
// the loss of a drafter is not felt. A session without figures of its own uses those of others.
func (l *liaison) deadline() time.Duration {
	t, pace := l.g.cfg.Timeouts, l.pace
	if pace == 0 {
		pace = time.Duration(l.of.Seat.Pace.Load())
	}
	if pace == 0 {
		return t.ProposeMax
	}
	return min(max(min(10*pace, pace+mostLate), t.ProposeMin), t.ProposeMax)
}

// failed decides how the session goes on with the drafter after an error of Open or Propose.
func (l *liaison) failed(err error, opening bool) {
	kind := tandem.KindOf(err)
	l.g.cfg.Counters.Add("drafter."+kind.String(), 1)
	first := l.pause == 0
	switch kind {
	case tandem.Invalid, tandem.Unsupported:
		l.state = liaisonOff // it would refuse again
	case tandem.Corrupt: // its answer could not be read
		l.offend()
	case tandem.Deadline, tandem.Exhausted:
		l.rest(opening)
	default:
		l.rest(true)
	}
	if (kind == tandem.UnknownSession || kind == tandem.Stale) && first {
		l.retry = time.Now() // it lives, it merely does not know the session
	}
}

// rest leaves the drafter alone for a while, after which it must open the session again if reopen is set.
func (l *liaison) rest(reopen bool) {
	l.state, l.reopen = liaisonPaused, reopen
	l.retry = time.Now().Add(max(l.pause, firstPause))
	l.pause = min(max(2*l.pause, firstPause), longPause)
}

// restart makes the drafter hold the session as o says, which has a new epoch.
func (l *liaison) restart(ctx context.Context, o tandem.Opening) {
	if l.guess = nil; l.of.Way != nil {
		return
	}
	switch l.state {
	case liaisonOpening, liaisonReady:
		l.start(ctx, o)
	case liaisonPaused, liaisonTried:
		l.state, l.reopen = liaisonPaused, true
	}
}

// offend gives the drafter up for this session because it sent garbage, and counts that against it.
func (l *liaison) offend() {
	l.g.cfg.Counters.Add("drafter.garbage", 1)
	if l.of.Seat.Conduct.Offend(time.Now()) {
		l.g.cfg.Counters.Add("drafter.put_aside", 1)
	}
	l.quarantine()
}

// miss counts a round for which the drafter said that it had put a ticket, but the verifier answered only the
// gateway's own. Once may be chance, because tickets can be lost; after mostMissed in a row it is garbage.
func (l *liaison) miss() {
	if l.missed++; l.missed == mostMissed {
		l.offend()
	}
}

// quarantine gives the drafter up for this session.
func (l *liaison) quarantine() {
	if l.state == liaisonOff {
		return
	}
	l.state = liaisonOff
	l.g.cfg.Counters.Add("drafter.quarantined", 1)
	l.cancelTask()
}

// retire ends the session at this drafter, in the background. It returns a channel that closes
// when that is done, nil if the drafter never heard of the session.
func (l *liaison) retire(id tandem.SessionID) <-chan struct{} {
	opened := l.cancelTask()
	if opened == nil {
		return nil
	}
	if l.call != nil {
		l.call.cancel()
	}
	l.state = liaisonOff
	done := make(chan struct{})
	l.g.crew.run(func() {
		defer close(done)
		<-opened // an Open that overtook the Close would hold the session for ever
		l.g.shut(id, l.of.Drafter.Close)
	})
	return done
}

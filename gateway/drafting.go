package gateway

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
)

// draftState is where a session stands with its drafter.
type draftState uint8

const (
	draftOff     draftState = iota // none, or given up for this session
	draftOpening                   // an Open is under way
	draftReady                     // it holds the session
	draftPaused                    // it failed; to be tried again at retry
)

const (
	firstPause = 50 * time.Millisecond
	longPause  = 5 * time.Second
)

// drafting is a session's side of its drafter. It belongs to the session's goroutine; only an Open
// runs in a goroutine of its own and reports through its opening.
//
//		off ◀─ refused, violation ─ any state
//		opening ─ ok ▶ ready ─ propose failed ▶ paused ─ retry, or the drafter came up ▶ opening or ready
//		   └──────── failed ───────────────────────▶┘
//
//	 1. It never blocks a round longer than one Propose deadline: while it is not ready, rounds are plain.
//	 2. At most one Open is under way; the next one waits for the end of a cancelled one, so that an
//	    old epoch cannot arrive after a new one.
//	 3. Failures in a row double the pause, so a drafter that is gone or hangs costs next to nothing.
//
// The session could as well run a goroutine that keeps the drafter open; but then two goroutines
// would write the epoch and the acknowledged length, for a drafter that is needed only at the start
// of a round, which is where tick looks after it.
type drafting struct {
	g      *Gateway
	spans  *spans
	state  draftState
	acked  tandem.Position // the drafter was last told the tokens [0, acked)
	task   *opening        // the latest; nil before the first
	opened bool            // it held the session once
	reopen bool            // paused: it must open the session again before it proposes
	retry  time.Time
	pause  time.Duration   // the next one's length; 0 after a success
	pace   time.Duration   // running mean of the time of a Propose; 0 before the first
	up     <-chan struct{} // closes when the drafter comes up after the latest attempt began
}

// opening is one Open of the drafter. err may be read once done is closed.
type opening struct {
	done   chan struct{}
	err    error
	held   tandem.Position
	cancel context.CancelFunc
	end    tandem.End // nil once called
}

// start opens the session at the drafter in the background, in place of any Open under way.
func (d *drafting) start(ctx context.Context, o tandem.Opening) {
	prev := d.cancelTask()
	ctx = d.spans.open(ctx, d.g.cfg.Events)
	begun, end := d.g.cfg.Events.Begin(ctx, tandem.StagePrefill, text("process", "drafter"), number("epoch", int(o.Epoch)))
	begun, cancel := context.WithTimeout(begun, d.g.cfg.Timeouts.Open)
	t := &opening{done: make(chan struct{}), held: tandem.Position(len(o.Tokens)), cancel: cancel, end: end}
	d.g.crew.run(func() {
		defer close(t.done)
		defer cancel()
		if prev != nil {
			<-prev
		}
		if t.err = begun.Err(); t.err == nil {
			t.err = guard(func() error { return d.g.cfg.Drafter.Open(begun, o) })
		}
	})
	d.task, d.state, d.up = t, draftOpening, d.g.drafter.next()
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

// settle waits for the Open under way, but no longer than patience.
func (d *drafting) settle(ctx context.Context, patience time.Duration) {
	if d.state != draftOpening {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-d.task.done:
		d.collect()
	case <-timer.C:
		d.g.cfg.Counters.Add("drafter.late_open", 1)
	case <-ctx.Done():
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
	rebuilt = d.opened
	d.state, d.acked, d.opened = draftReady, t.held, true
	return rebuilt
}

// tick takes the drafter's state forward at the start of a round, and reports whether a session was
// rebuilt. o describes the session as it is now.
func (d *drafting) tick(ctx context.Context, o func() tandem.Opening) (rebuilt bool) {
	switch d.state {
	case draftOpening:
		select {
		case <-d.task.done:
			return d.collect()
		default:
		}
	case draftPaused:
		select {
		case <-d.up:
		default:
			if time.Now().Before(d.retry) {
				return false
			}
		}
		if d.reopen {
			d.start(ctx, o())
		} else {
			d.state = draftReady
		}
	}
	return false
}

// propose asks for one tree. ok means that a ticket is in the pool, even if it holds the root alone.
func (d *drafting) propose(ctx context.Context, p tandem.Proposal, maxNodes int) (got tandem.Proposed, ok bool) {
	limited, cancel := context.WithTimeout(ctx, d.deadline())
	defer cancel()
	d.up = d.g.drafter.next()
	begun := time.Now()
	got, err := d.g.cfg.Drafter.Propose(limited, p)
	took := time.Since(begun)
	if ctx.Err() != nil {
		return tandem.Proposed{}, false // the request has ended; that says nothing about the drafter
	}
	if tandem.KindOf(err) == tandem.Deadline || err == nil {
		d.pace = mean(d.pace, took)
	}
	if err != nil {
		d.failed(err, false)
		return tandem.Proposed{}, false
	}
	d.acked, d.pause = p.Base, 0
	if got.Nodes < 1 || got.Nodes > maxNodes || got.Depth < 0 || got.Depth >= got.Nodes || got.Busy < 0 {
		d.quarantine()
		return tandem.Proposed{}, false
	}
	return got, true
}

// deadline is ten times the usual time of a Propose, within bounds.
func (d *drafting) deadline() time.Duration {
	t := d.g.cfg.Timeouts
	if d.pace == 0 {
		return t.ProposeMax
	}
	return min(max(10*d.pace, t.ProposeMin), t.ProposeMax)
}

// failed decides what an error of Open or Propose means for the rounds to come.
func (d *drafting) failed(err error, opening bool) {
	kind := tandem.KindOf(err)
	d.g.cfg.Counters.Add("drafter."+kind.String(), 1)
	switch kind {
	case tandem.Invalid, tandem.Unsupported:
		d.state = draftOff // it would refuse again
		return
	case tandem.Deadline, tandem.Exhausted:
		d.reopen = opening
	default:
		d.reopen = true
	}
	d.state = draftPaused
	lost := kind == tandem.UnknownSession || kind == tandem.Stale
	if d.retry = time.Now().Add(max(d.pause, firstPause)); lost && d.pause == 0 {
		d.retry = time.Now() // it lives, it merely does not know the session
	}
	d.pause = min(max(2*d.pause, firstPause), longPause)
}

// restart makes the drafter hold the session as o says, which has a new epoch.
func (d *drafting) restart(ctx context.Context, o tandem.Opening) {
	switch d.state {
	case draftOpening, draftReady:
		d.start(ctx, o)
	case draftPaused:
		d.reopen = true
	}
}

// quarantine gives the drafter up for this session because it broke a contract.
func (d *drafting) quarantine() {
	if d.state == draftOff {
		return
	}
	d.state = draftOff
	d.g.cfg.Counters.Add("drafter.quarantined", 1)
	d.cancelTask()
}

// mean is the running mean of a series with weight 1/4 for the newest value.
func mean(old, latest time.Duration) time.Duration {
	if old == 0 {
		return max(latest, 1)
	}
	return max(old+(latest-old)/4, 1)
}

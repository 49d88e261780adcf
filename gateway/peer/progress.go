package peer

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
)

// stallTicks is the number of ticks in a stall time.
const stallTicks = 20

// Progress bounds an Open by its progress, not by its time. While the peer advances, with this session or with others before it, the Open
// may take any time. The peer has stalled when nothing has come from it for the stall time, or when its passes have stood still for the
// stall time and for as long as the supervisor lets a pass take (tandem.PassMay).
//
// The time is counted in ticks, and a late tick counts once: a gateway that was suspended with its machine does not blame the peer. Safe
// for concurrent use.
type Progress struct {
	peer   string
	tick   time.Duration
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	timer  *time.Timer
	silent int // ticks since the last report
	still  int // ticks since the last report of an advance
	last   tandem.Progress
	begun  bool // something was reported
	ended  bool
}

// Watch returns a context that ends when the peer has stalled, with a cause of kind Deadline, and the Progress that takes the peer's
// reports. peer is its name in errors, stall the time without progress. The caller must Stop the Progress, which also ends the context.
func Watch(ctx context.Context, peer string, stall time.Duration) (context.Context, *Progress) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &Progress{peer: peer, tick: stall / stallTicks, cancel: cancel}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(a.tick, a.count)
	return ctx, a
}

// Report takes a report of the peer. It returns whether the peer has advanced since the report before; the first one counts as an advance.
func (a *Progress) Report(p tandem.Progress) (advanced bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	advanced = !a.begun || p.Steps != a.last.Steps || p.Held != a.last.Held
	if a.silent = 0; advanced {
		a.still = 0
	}
	a.last, a.begun = p, true
	return advanced
}

// Begun returns whether the peer has reported anything.
func (a *Progress) Begun() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.begun
}

func (a *Progress) count() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return
	}
	a.silent, a.still = a.silent+1, a.still+1
	still := time.Duration(a.still) * a.tick
	switch {
	case a.silent >= stallTicks:
		a.cancel(tandem.Errorf(op, tandem.Deadline, "%s has said nothing for %v while it opened the session", a.peer,
			time.Duration(a.silent)*a.tick))
	case a.still >= stallTicks && still >= tandem.PassMay(a.last.Pass):
		a.cancel(tandem.Errorf(op, tandem.Deadline, "%s has got no further for %v while it opened the session", a.peer, still))
	default:
		a.timer.Reset(a.tick)
	}
}

// Cancel ends the context with that cause, unless it has ended already. The caller must Stop even so.
func (a *Progress) Cancel(cause error) { a.cancel(cause) }

// Stop ends the watch and the context. Stopping twice is harmless.
func (a *Progress) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.timer.Stop()
	a.cancel(nil)
}

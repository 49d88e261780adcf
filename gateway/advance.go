package gateway

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
)

// stallTicks is in how many parts a peer's silence is counted.
const stallTicks = 20

// advance bounds an Open by its progress, not by its time: as long as the peer gets on, with this session or with others before it, it may
// take as long as it needs. It has stalled when nothing has come from it for the stall time, or when its passes have stood still for that
// long, or for as long as the supervisor lets a pass take (tandem.PassMay), if that is longer.
//
// The time is counted in ticks, each once however late: a gateway that was suspended with its machine does not blame the peer.
type advance struct {
	peer   string
	tick   time.Duration
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	timer  *time.Timer
	silent int // ticks since the last word
	still  int // ticks since the last step
	last   tandem.Progress
	words  int
	ended  bool
}

// advancing returns a context that ends when the peer has stalled, and what is to be told of its progress. The caller must stop it.
func advancing(ctx context.Context, peer string, stall time.Duration) (context.Context, *advance) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &advance{peer: peer, tick: stall / stallTicks, cancel: cancel}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(a.tick, a.count)
	return ctx, a
}

// told takes a word from the peer, and reports whether it got on since the one before.
func (a *advance) told(p tandem.Progress) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	on := a.words == 0 || p.Steps != a.last.Steps || p.Held != a.last.Held
	if a.silent = 0; on {
		a.still = 0
	}
	a.last = p
	a.words++
	return on
}

// heard reports whether the peer has begun.
func (a *advance) heard() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.words > 0
}

func (a *advance) count() {
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

// stop ends the watch and the context.
func (a *advance) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.timer.Stop()
	a.cancel(nil)
}

// Prefill is a session whose prompt, or all that it has, is being read by the verifier.
type Prefill struct {
	Session tandem.SessionID
	Held    int  // tokens that the verifier holds, those found in its memory included
	Total   int  // tokens that it is to hold
	Again   bool // its client has had output: it is read again
}

// Prefills returns the sessions that the verifier is reading, those with the lowest ids first.
func (g *Gateway) Prefills() []Prefill {
	g.mu.RLock()
	defer g.mu.RUnlock()
	out := make([]Prefill, 0, len(g.prefills))
	for _, id := range slices.Sorted(maps.Keys(g.prefills)) {
		out = append(out, g.prefills[id])
	}
	return out
}

// reading notes that the verifier has read held tokens of the session, of total; read, that it does not read it any more.
func (s *session) reading(held, total int) {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	s.g.prefills[s.id] = Prefill{Session: s.id, Held: min(max(held, 0), total), Total: total, Again: s.told}
}

func (s *session) read() {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	delete(s.g.prefills, s.id)
}

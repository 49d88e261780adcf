package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/admit"
)

// patience is how long a session whose output is not read keeps its place before it is parked: a client that takes
// half of what waits for it in this time is not slow.
const patience = 100 * time.Millisecond

// live takes the session from its opening to its end, and gives back what it holds. For its client it ends
// when all of its output is read.
func (s *session) live(ctx context.Context) (res tandem.Result, err error) {
	defer s.out.end()
	defer func() { s.g.gate.Leave(s.place) }()
	defer s.close() // after the result: a failure leaves the peers nothing to forget
	err = guard(func() error { return s.run(ctx) })
	return s.result(), err
}

// say hands output to the client. A session with too much unread output is parked until half of it is
// read, so that a slow client does not take a place from others.
func (s *session) say(ctx context.Context, d tandem.Delta) error {
	if err := s.out.put(piece{delta: d, bytes: size(&d)}); err != nil {
		return err
	}
	if s.finish == "" && !s.out.full() {
		return nil
	}
	s.out.flush()
	if s.finish != "" {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if s.out.drained(limited) {
		return nil
	}
	if ctx.Err() != nil {
		return s.ended(ctx)
	}
	return s.park(ctx)
}

// park closes the session at both peers and gives its place back, waits until the client reads, and opens the
// session again, from its committed tokens and in a new epoch, as soon as it is admitted. As those are the truth, the
// text goes on as if nothing had happened. It is called between two rounds, when no answer is outstanding.
func (s *session) park(ctx context.Context) error {
	begun := time.Now()
	defer func() { s.parked += time.Since(begun) }()
	if err := s.rest(ctx); err != nil {
		return err
	}
	s.epoch++
	s.stats.Reopened++
	s.muster(ctx)
	return s.openVerifier(ctx)
}

// rest is the part of park during which the session has no place.
func (s *session) rest(ctx context.Context) (err error) {
	traced, end := s.g.cfg.Events.Begin(s.spans.open(ctx, s.g.cfg.Events), tandem.StageParked, number("base", len(s.tokens)))
	defer func() { end(err) }()
	defer s.g.parked()()
	if err := s.g.gate.Park(s.place); err != nil {
		return err
	}
	closed := s.leavePeers()
	if !s.out.drained(traced) {
		return s.ended(ctx)
	}
	if err := s.g.gate.Return(traced, s.place); err != nil {
		return s.notBack(ctx, err)
	}
	select {
	case <-closed: // it must not overtake the Open to come
		return nil
	case <-ctx.Done():
		return s.ended(ctx)
	}
}

// parked counts a session that has given its place back, until the function that it returns is called.
func (g *Gateway) parked() (back func()) {
	g.cfg.Counters.Add("sessions.parkings", 1)
	g.cfg.Counters.Add("sessions.parked", 1)
	return func() { g.cfg.Counters.Add("sessions.parked", -1) }
}

// leavePeers closes the session at the verifier and the drafters, in the background. The channel closes when the verifier has forgotten it.
func (s *session) leavePeers() <-chan struct{} {
	closed := make(chan struct{})
	s.touched = false
	s.g.crew.run(func() {
		defer close(closed)
		s.g.shut(s.id, s.g.cfg.Verifier.Close)
	})
	s.leaveDrafters()
	return closed
}

// yield parks a session although its client reads: for another, which needs its place or its memory. The peers forget it first, so that
// what it held is free when its place is. It comes back in a new epoch, as soon as it is its turn, and is then to be opened. Like park it
// is called when no answer is outstanding.
func (s *session) yield(ctx context.Context, w admit.Want) (err error) {
	begun := time.Now()
	defer func() { s.parked += time.Since(begun) }()
	traced, end := s.g.cfg.Events.Begin(s.spans.open(ctx, s.g.cfg.Events), tandem.StageParked, number("base", len(s.tokens)))
	defer func() { end(err) }()
	defer s.g.parked()()
	select {
	case <-s.leavePeers():
	case <-ctx.Done():
		return s.ended(ctx)
	}
	if err := s.g.gate.Yield(traced, s.place, w); err != nil {
		return s.notBack(ctx, err)
	}
	s.epoch++
	s.stats.Reopened++
	s.lost = time.Time{}
	s.muster(ctx)
	return nil
}

// errAside ends an Open of a session that another tenant's request waits for.
var errAside = errors.New("another tenant's request waits for its place")

// stepAside yields because another tenant's request waits and has less.
func (s *session) stepAside(ctx context.Context) error {
	s.g.cfg.Counters.Add("sessions.stepped_aside", 1)
	return s.yield(ctx, admit.Want{})
}

const (
	firstAhead  = 256 // tokens that a request counts with, at the gate, beyond those that it has; doubles whenever it was too little
	mostStarved = 3   // times that a session yields for memory without getting on, before it waits until it is alone
)

// makeRoom yields because the verifier has no room for the session; false if that would be in vain, because nobody else has a place.
func (s *session) makeRoom(ctx context.Context) (yielded bool, err error) {
	if !s.g.gate.Starved(s.place) {
		return false, nil
	}
	s.g.cfg.Counters.Add("sessions.starved", 1)
	s.starved++
	s.ahead = min(2*s.ahead, s.limit)
	s.counted = min(len(s.tokens)+s.ahead, s.limit)
	return true, s.yield(ctx, admit.Want{Tokens: s.counted, Room: true, Alone: s.starved > mostStarved})
}

// count tells the gate when the session has grown beyond what it counts with there.
func (s *session) count() {
	if len(s.tokens) >= s.counted && s.counted < s.limit {
		s.counted = min(len(s.tokens)+s.ahead, s.limit)
		s.g.gate.Grow(s.place, s.counted)
	}
}

// mend goes on after a round without a verdict to commit. A session for which the verifier had no memory waits until others have less;
// any other is opened again.
func (s *session) mend(ctx context.Context, a *answer) error {
	if a.verdict.Kind == tandem.Exhausted {
		if yielded, err := s.makeRoom(ctx); err != nil {
			return err
		} else if yielded {
			return s.openVerifier(ctx)
		}
	}
	return s.rebuild(ctx, a.fault)
}

// leaveDrafters closes the session at the drafters, so that muster opens it there again. Those that were given up stay so.
func (s *session) leaveDrafters() {
	var off []*liaison
	for _, l := range s.liaisons {
		if l.state == liaisonOff {
			off = append(off, l)
		} else if done := l.retire(s.id); done != nil {
			s.closing[l.of.Name] = done
		}
	}
	s.liaisons, s.listed = off, 0
}

// notBack is the error of a parked session that got no place again.
func (s *session) notBack(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return s.ended(ctx)
	}
	return tandem.Errorf(op, tandem.Unavailable, "session %s cannot go on after it was parked: %w", s.id, err)
}

// deliver runs an admitted session in a goroutine of its own, while the caller's hands its output to the sink.
func (g *Gateway) deliver(ctx context.Context, x *session, quit context.CancelCauseFunc) (res tandem.Result, err error) {
	ended := make(chan error, 1)
	g.crew.run(func() {
		var err error
		res, err = x.live(ctx)
		ended <- err
	})
	whole, failed := x.out.deliver(ctx, quit)
	err = <-ended
	switch {
	case failed != nil:
		err = failed
	case err == nil && !whole:
		err = x.ended(ctx)
	}
	return res, err
}

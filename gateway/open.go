package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/admit"
	"github.com/tandem-llm/tandem/gateway/peer"
	"github.com/tandem-llm/tandem/gateway/round"
)

const (
	firstWait = 20 * time.Millisecond // before an operation on a lost verifier is tried again; doubles
	longWait  = time.Second
)

// steppedAside counts sessions that yield because another tenant's request waits and has less.
const steppedAside = "sessions.stepped_aside"

// errClaimed ends an Open of a session that another tenant's request waits for.
var errClaimed = errors.New("another tenant's request waits for its slot")

// open makes the verifier hold the session. It waits for a verifier that is down, for memory as long as others hold it, or, once
// the session has begun, for a verifier of its identity.
func (s *session) open(ctx context.Context) (err error) {
	traced, end := s.g.cfg.Events.Begin(s.spans.open(ctx, s.g.cfg.Events), tandem.StagePrefill, text("process", "verifier"),
		number("epoch", int(s.text.Epoch)))
	defer func() { end(err) }()
	for wait := firstWait; ; wait = min(2*wait, longWait) {
		came := s.g.verifier.Next()
		begun, err := s.hold(traced)
		switch {
		case err == nil:
			s.losses.Since = time.Time{}
			return nil
		case ctx.Err() != nil:
			return s.ended(ctx)
		case errors.Is(err, errClaimed):
			if err := s.yield(ctx, steppedAside, admit.Want{}); err != nil {
				return err
			}
			continue
		}
		if yielded, err := s.notHeld(ctx, begun, err); err != nil {
			return err
		} else if yielded {
			continue
		}
		select {
		case <-came:
		case <-time.After(wait):
		case <-ctx.Done():
			return s.ended(ctx)
		}
	}
}

// notHeld decides what follows an Open that the verifier refused or broke off; begun says that it had begun to read. An error ends the
// request. yielded reports that the session has let others have their memory, and is to be opened at once.
func (s *session) notHeld(ctx context.Context, begun bool, err error) (yielded bool, _ error) {
	s.losses.Suspect(time.Now())
	id, kind := s.text.Session, tandem.KindOf(err)
	if begun && s.losses.Repair() { // a prefill that breaks off again and again, though it advances, must end as well
		return false, tandem.Errorf(op, tandem.Unavailable, "verifier broke off session %s %d times while it read it: %w", id,
			s.losses.Repairs, err)
	}
	s.g.cfg.Counters.Add("verifier.open_"+kind.String(), 1)
	if other := tandem.Refusal(err); other != "" {
		s.g.cfg.Counters.Add("refused."+other, 1)
		if !s.target.held { // there is no output yet, and waiting would hide a mistake
			return false, tandem.Errorf(op, tandem.Unavailable, "opening session %s at the verifier: %w", id, err)
		}
	}
	late := tandem.Unavailable // the kind if the wait has been too long
	switch kind {
	case tandem.Unavailable, tandem.Deadline, tandem.Canceled, tandem.Unauthenticated: // the last while a secret is replaced
	case tandem.Exhausted:
		if yielded, err := s.makeRoom(ctx); yielded || err != nil {
			return yielded, err
		}
		late = tandem.Exhausted
	case tandem.Stale, tandem.UnknownSession: // another Open, or a Close of all sessions, came between
		if s.losses.Repair() {
			return false, err
		}
		s.text.Epoch++
		s.sources.Restart(ctx)
	default:
		return false, tandem.Errorf(op, kind, "opening session %s at the verifier: %w", id, err)
	}
	if waited := time.Since(s.losses.Since); waited > s.g.cfg.Timeouts.VerifierWait {
		return false, tandem.Errorf(op, late, "verifier did not take session %s in %v: %w", id, waited.Round(time.Millisecond), err)
	}
	return false, nil
}

// hold makes the verifier hold the session, as long as it advances. begun reports whether it had begun to.
func (s *session) hold(ctx context.Context) (begun bool, err error) {
	limited, watch := peer.Watch(ctx, "verifier", s.g.cfg.Timeouts.Stall)
	defer watch.Stop()
	defer context.AfterFunc(s.g.gate.Asked(s.admission.slot), func() { watch.Cancel(errClaimed) })()
	s.target.touched = true
	found := func(cached int) {
		if !s.started { // nothing counts once the client knows that it has started
			s.target.found(cached)
		}
	}
	o := s.opening()
	o.SelfDrafts = s.sources.Guesses(s.text.Bounds(&s.req, s.rules.Nodes))
	defer s.g.prefills.end(s.text.Session)
	start := time.Now()
	o.Progress = func(p tandem.Progress) {
		// the last token is the root of the first tree
		s.g.prefills.set(Prefill{Session: s.text.Session, Held: p.Held, Total: len(o.Tokens) - 1, Again: s.started})
		if watch.Report(p) {
			s.losses.Since = time.Time{}
		}
		found(p.Cached)
		if s.req.Progress && !s.started {
			s.out.progress(tandem.PromptProgress{Total: len(o.Tokens), Cached: p.Cached, Processed: p.Held, Time: time.Since(start)})
		}
	}
	opened, err := s.g.cfg.Verifier.Open(limited, o)
	if err == nil {
		err = s.target.accept(s.text.Session, opened)
	}
	if err != nil {
		if cause := context.Cause(limited); cause != nil && ctx.Err() == nil {
			err = cause
		}
		return watch.Begun(), err
	}
	found(opened.Cached)
	s.g.gate.Opened(s.admission.slot)
	s.sources.TakeGuesses(opened.Guesses, o.SelfDrafts, 0)
	return true, nil
}

// reopen goes on after a round without a verdict to commit: it opens the session again at all peers, from its committed tokens and in a new
// epoch. A session for which the verifier had no memory first waits until others have less. It fails after too many attempts or too long
// a time.
func (s *session) reopen(ctx context.Context, a round.Action) error {
	if a.Do == round.MakeRoom {
		if yielded, err := s.makeRoom(ctx); err != nil {
			return err
		} else if yielded {
			return s.open(ctx)
		}
	}
	pause, err := s.losses.Reopen(time.Now(), s.g.cfg.Timeouts.VerifierWait, &s.text, a.Err)
	if err != nil {
		return err
	}
	if pause > 0 {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return s.ended(ctx)
		}
	}
	s.text.Epoch++
	s.sources.Restart(ctx)
	s.account.stats.Reopened++
	return s.open(ctx)
}

// park gives the session's slot back, waits until the client reads, and opens the session again as soon as it is admitted.
func (s *session) park(ctx context.Context) error {
	defer s.admission.without(time.Now())
	err := s.away(ctx, func(ctx context.Context, closed <-chan struct{}) error {
		if err := s.g.gate.Park(s.admission.slot); err != nil {
			return err
		}
		if !s.out.drained(ctx) {
			return context.Cause(ctx)
		}
		if err := s.g.gate.Return(ctx, s.admission.slot); err != nil {
			return err
		}
		return wait(ctx, closed) // it must not overtake the Open to come
	})
	if err != nil {
		return err
	}
	return s.open(ctx)
}

// makeRoom yields because the verifier has no memory for the session; false if that would be in vain, because nobody else has a slot.
func (s *session) makeRoom(ctx context.Context) (yielded bool, err error) {
	if !s.g.gate.Starved(s.admission.slot) {
		return false, nil
	}
	return true, s.yield(ctx, "sessions.starved", s.admission.starve(&s.text))
}

// yield parks a session although its client reads: for another, which needs its slot or its memory, as counter says. The peers forget it
// first, so that what it held is free when its slot is. It comes back as soon as it is its turn, and is then to be opened.
func (s *session) yield(ctx context.Context, counter string, w admit.Want) error {
	defer s.admission.without(time.Now())
	s.g.cfg.Counters.Add(counter, 1)
	return s.away(ctx, func(ctx context.Context, closed <-chan struct{}) error {
		if err := wait(ctx, closed); err != nil {
			return err
		}
		return s.g.gate.Yield(ctx, s.admission.slot, w)
	})
}

// away parks the session: it closes it at all peers, in the background, and calls back, which returns once the session may go on, with a
// channel that closes when the verifier has forgotten it. Then it prepares the session for being opened again, from its committed
// tokens and in a new epoch. As those are the truth, the text goes on as if nothing had happened. It is called between two
// rounds, when no answer is outstanding.
func (s *session) away(ctx context.Context, back func(context.Context, <-chan struct{}) error) (err error) {
	traced, end := s.g.cfg.Events.Begin(s.spans.open(ctx, s.g.cfg.Events), tandem.StageParked, number("base", s.text.Len()))
	defer func() { end(err) }()
	s.g.cfg.Counters.Add("sessions.parkings", 1)
	s.g.cfg.Counters.Add("sessions.parked", 1)
	defer s.g.cfg.Counters.Add("sessions.parked", -1)
	closed := make(chan struct{})
	s.target.touched = false
	s.g.tasks.run(func() {
		defer close(closed)
		s.g.closer.Close(s.text.Session, s.g.cfg.Verifier.Close)
	})
	s.sources.Leave()
	err = back(traced, closed)
	switch {
	case ctx.Err() != nil:
		return s.ended(ctx)
	case err != nil:
		return tandem.Errorf(op, tandem.Unavailable, "session %s cannot go on after it was parked: %w", s.text.Session, err)
	}
	s.text.Epoch++
	s.account.stats.Reopened++
	s.losses.Since = time.Time{}
	s.update(ctx)
	return nil
}

// wait waits until done closes or ctx ends.
func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

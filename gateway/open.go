package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-llm/tandem"
)

// openVerifier makes the verifier hold the session. It waits for a verifier that is down, for memory, as long as others hold it, or, once
// the session has begun, for a verifier of its identity.
func (s *session) openVerifier(ctx context.Context) (err error) {
	t := s.g.cfg.Timeouts
	traced, end := s.g.cfg.Events.Begin(s.spans.open(ctx, s.g.cfg.Events), tandem.StagePrefill, text("process", "verifier"),
		number("epoch", int(s.epoch)))
	defer func() { end(err) }()
	for wait := firstWait; ; wait = min(2*wait, longWait) {
		came := s.g.verifier.Next()
		begun, err := s.hold(traced)
		switch {
		case err == nil:
			s.lost = time.Time{}
			return nil
		case ctx.Err() != nil:
			return s.ended(ctx)
		case errors.Is(err, errAside):
			if err := s.stepAside(ctx); err != nil {
				return err
			}
			continue
		}
		s.suspect()
		if begun { // a prefill that breaks off again and again, though it gets on, must end as well
			if s.repairs++; s.repairs > mostRepairs {
				return tandem.Errorf(op, tandem.Unavailable, "verifier broke off session %s %d times while it read it: %w", s.id, s.repairs,
					err)
			}
		}
		s.g.cfg.Counters.Add("verifier.open_"+tandem.KindOf(err).String(), 1)
		if other := tandem.Refusal(err); other != "" {
			s.g.cfg.Counters.Add("refused."+other, 1)
			if !s.held { // nothing has been said yet, and waiting would hide a mistake
				return tandem.Errorf(op, tandem.Unavailable, "opening session %s at the verifier: %w", s.id, err)
			}
		}
		switch kind := tandem.KindOf(err); kind {
		case tandem.Unavailable, tandem.Deadline, tandem.Canceled, tandem.Unauthenticated: // the last while a secret is replaced
		case tandem.Exhausted:
			if yielded, err := s.makeRoom(ctx); err != nil {
				return err
			} else if yielded {
				continue
			}
		case tandem.Stale, tandem.UnknownSession: // another Open, or a Close of all sessions, came between
			if s.repairs++; s.repairs > mostRepairs {
				return err
			}
			s.epoch++
			s.restart(ctx)
		default:
			return tandem.Errorf(op, kind, "opening session %s at the verifier: %w", s.id, err)
		}
		if waited := time.Since(s.lost); waited > t.VerifierWait {
			kind := tandem.Unavailable
			if errors.Is(err, tandem.Exhausted) {
				kind = tandem.Exhausted
			}
			return tandem.Errorf(op, kind, "verifier did not take session %s in %v: %w", s.id, waited.Round(time.Millisecond), err)
		}
		select {
		case <-came:
		case <-time.After(wait):
		case <-ctx.Done():
			return s.ended(ctx)
		}
	}
}

// hold makes the verifier hold the session, as long as it gets on with that. begun reports whether it had begun to.
func (s *session) hold(ctx context.Context) (begun bool, err error) {
	limited, a := advancing(ctx, "verifier", s.g.cfg.Timeouts.Stall)
	defer a.stop()
	defer context.AfterFunc(s.g.gate.Asked(s.place), func() { a.cancel(errAside) })()
	s.touched = true
	o := s.opening()
	o.SelfDrafts = s.wanted()
	total := len(o.Tokens) - 1 // the last is the root of the first tree
	defer s.read()
	o.Progress = func(p tandem.Progress) {
		if s.reading(p.Held, total); a.told(p) {
			s.lost = time.Time{}
		}
		s.found(p.Cached)
	}
	opened, err := s.g.cfg.Verifier.Open(limited, o)
	if err == nil {
		err = s.accept(opened)
	}
	if err != nil {
		if cause := context.Cause(limited); cause != nil && ctx.Err() == nil {
			err = cause
		}
		return a.heard(), err
	}
	s.found(opened.Cached)
	s.g.gate.Opened(s.place)
	s.hearGuesses(opened.Guesses, o.SelfDrafts, 0)
	return true, nil
}

// found notes how many tokens the verifier held before it began to open the session. If the request began it several times, the least
// counts, because it has computed the others itself; nothing counts once it has told its client that it has started.
func (s *session) found(cached int) {
	if cached = max(cached, 0); !s.told && (!s.looked || cached < s.cached) {
		s.cached, s.looked = cached, true
	}
}

// accept takes the first verifier's identity as the session's, and refuses a later verifier of another identity.
func (s *session) accept(o tandem.Opened) error {
	if s.held && o.Identity != s.identity {
		return tandem.OtherIdentity(s.id, s.identity, o.Identity)
	}
	s.identity, s.held = o.Identity, true
	return nil
}

package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-llm/tandem"
)

// answer is what one ask led to.
type answer struct {
	verdict  tandem.Verdict
	proposed tandem.Proposed // zero if not drafted
	drafted  bool
	tickets  int          // put in all
	fault    error        // why there is no verdict to commit: the session must be rebuilt
	delta    tandem.Delta // set by commit
}

// attributes describe the round for telemetry.
func (a answer) attributes(drafter string) []tandem.Attr {
	attrs := []tandem.Attr{number("nodes", a.proposed.Nodes), number("depth", a.proposed.Depth), number("accepted", len(a.verdict.Path))}
	switch {
	case a.fault != nil:
		return append(attrs, text("outcome", "stale"))
	case !a.drafted:
		return attrs
	}
	outcome := "partial"
	switch len(a.verdict.Path) {
	case 0:
		outcome = "rejected"
	case a.proposed.Depth:
		outcome = "accepted"
	}
	return append(attrs, text("drafter", drafter), text("outcome", outcome))
}

// ask puts one ticket, or has the drafter put one, and waits for its verdict. Repeated tickets go out
// under again, so that a trace does not grow with them.
func (s *session) ask(ctx, again context.Context) (a answer, err error) {
	q := question{epoch: s.epoch, base: tandem.Position(len(s.tokens)), hash: s.hash}
	came := s.g.verifier.next() // before the ticket: a restart in between must not go unseen
	s.box.arm(q)
	a.proposed, a.drafted = s.propose(ctx, q)
	if err = s.await(ctx, again, q, &a, came); err == nil && a.fault == nil {
		a.fault = s.check(a.verdict)
	}
	return a, err
}

// propose asks the drafter for a tree that the rest of the budget can use.
func (s *session) propose(ctx context.Context, q question) (tandem.Proposed, bool) {
	p := s.req.Policy
	p.Depth = min(p.Depth, s.limit-len(s.tokens)-1)
	if s.draft.state != draftReady || p.Plain() {
		return tandem.Proposed{}, false
	}
	from := s.draft.acked
	return s.draft.propose(ctx, tandem.Proposal{Session: s.id, Epoch: q.epoch, Base: q.base, Hash: q.hash,
		From: from, Suffix: s.tokens[from:q.base:q.base], Policy: p}, s.maxNodes())
}

// await sets a.verdict to the answer to q, whatever its kind, or a.fault if the verifier seems lost.
// While no answer comes it puts the root alone: at once if nobody has put a ticket yet, and again
// whenever the verifier came up or the wait, doubled each time, is over. An error ends the request.
func (s *session) await(ctx, again context.Context, q question, a *answer, came <-chan struct{}) error {
	t := s.g.cfg.Timeouts
	wait, retry := max(t.Round, min(10*s.pace, t.VerifierWait/8)), quickWait
	timer := time.NewTimer(wait)
	defer timer.Stop()
	put := func(ctx context.Context) {
		if a.fault = s.put(ctx, q); a.fault != nil {
			s.g.cfg.Counters.Add("pool."+tandem.KindOf(a.fault).String(), 1)
			s.suspect()
			timer.Reset(retry)
			retry = min(2*retry, slowWait)
			return
		}
		if a.tickets > 0 {
			s.g.cfg.Counters.Add("tickets.repeated", 1)
		}
		timer.Reset(wait << a.tickets)
		a.tickets, retry = a.tickets+1, quickWait
	}
	if a.drafted {
		a.tickets = 1
	} else if ctx.Err() == nil && !s.box.answered() {
		put(ctx)
	}
	for {
		select {
		case v := <-s.box.answer:
			if v.Kind != tandem.Invalid || !a.drafted {
				a.verdict, a.fault = v, nil
				return nil
			}
			a.drafted = false // the drafter's tree broke a contract, the session did not
			s.draft.quarantine()
			s.box.arm(q)
			put(again)
			continue
		case <-came:
			came = s.g.verifier.next()
			a.tickets = min(a.tickets, 1) // the others went to its predecessor
		case <-timer.C:
		case <-ctx.Done():
			return s.ended(ctx)
		}
		s.suspect()
		if a.tickets < mostTickets && time.Since(s.lost) <= t.VerifierWait {
			put(again)
			continue
		}
		if a.fault == nil {
			s.g.cfg.Counters.Add("verifier.silent", 1)
			a.fault = tandem.Errorf(op, tandem.Unavailable, "verifier answered none of %d tickets", a.tickets)
		}
		return nil
	}
}

// put puts a ticket with the root alone into the pool.
func (s *session) put(ctx context.Context, q question) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.g.cfg.Timeouts.Round)
	defer cancel()
	ctx, end := s.g.cfg.Events.Begin(ctx, tandem.StageSend)
	defer func() { end(err) }()
	return s.g.cfg.Pool.Put(ctx, tandem.Ticket{Session: s.id, Epoch: q.epoch, Base: q.base, Hash: q.hash,
		Tree: tandem.Root(s.tokens[q.base-1]), Trace: s.g.cfg.Events.Carrier(ctx)})
}

// check returns nil if v may be committed, else why the session must be rebuilt.
func (s *session) check(v tandem.Verdict) error {
	if v.Kind != tandem.OK {
		s.g.cfg.Counters.Add("verifier."+v.Kind.String(), 1)
		return tandem.Errorf(op, v.Kind, "verifier answered %v: %s", v.Kind, v.Message)
	}
	err := wellFormed(v, s.maxNodes(), s.g.cfg.Vocab.Size())
	if err != nil {
		s.g.cfg.Counters.Add("verdicts.garbage", 1)
		s.draft.quarantine()
	}
	return err
}

// wellFormed checks what a verdict says against what any verdict may say.
func wellFormed(v tandem.Verdict, maxNodes, vocab int) error {
	if len(v.Tokens) != len(v.Path)+1 {
		return tandem.Errorf(op, tandem.Corrupt, "verdict has %d tokens for a path of %d nodes: want %d", len(v.Tokens), len(v.Path), len(v.Path)+1)
	}
	last := int32(0)
	for _, n := range v.Path {
		if n <= last || int(n) >= maxNodes {
			return tandem.Errorf(op, tandem.Corrupt, "verdict accepts node %d after node %d of at most %d", n, last, maxNodes)
		}
		last = n
	}
	for _, t := range v.Tokens {
		if t < 0 || int(t) >= vocab {
			return tandem.Errorf(op, tandem.Corrupt, "verdict has token %d: vocabulary has %d", t, vocab)
		}
	}
	return nil
}

// rebuild opens the session again at both peers from its committed tokens, in a new epoch, unless
// that was done too often or for too long.
func (s *session) rebuild(ctx context.Context, cause error) error {
	s.suspect()
	s.repairs++
	kind := tandem.KindOf(cause)
	switch kind {
	case tandem.Exhausted, tandem.Corrupt:
	case tandem.UnknownSession, tandem.Stale, tandem.Unavailable, tandem.Deadline, tandem.Canceled:
		kind = tandem.Unavailable
	default:
		kind = tandem.Internal
	}
	if waited := time.Since(s.lost); s.repairs > mostRepairs || waited > s.g.cfg.Timeouts.VerifierWait {
		return tandem.Errorf(op, kind, "session %s got no further at %d tokens in %v and %d attempts: %w",
			s.id, len(s.tokens), waited.Round(time.Millisecond), s.repairs, cause)
	}
	if s.repairs > 1 {
		select {
		case <-time.After(min(firstWait<<s.repairs, longWait)):
		case <-ctx.Done():
			return s.ended(ctx)
		}
	}
	s.epoch++
	s.draft.restart(ctx, s.opening())
	s.stats.Reopened++
	return s.openVerifier(ctx)
}

// openVerifier makes the verifier hold the session. It waits for a verifier that is down or has no
// memory free.
func (s *session) openVerifier(ctx context.Context) (err error) {
	t := s.g.cfg.Timeouts
	traced, end := s.g.cfg.Events.Begin(s.spans.open(ctx, s.g.cfg.Events), tandem.StagePrefill, text("process", "verifier"), number("epoch", int(s.epoch)))
	defer func() { end(err) }()
	for wait := firstWait; ; wait = min(2*wait, longWait) {
		came := s.g.verifier.next()
		patience := t.VerifierWait
		limited, cancel := context.WithTimeout(traced, t.Open)
		s.touched = true
		err := s.g.cfg.Verifier.Open(limited, s.opening())
		cancel()
		if err == nil {
			s.lost = time.Time{}
			return nil
		}
		if ctx.Err() != nil {
			return s.ended(ctx)
		}
		s.suspect()
		s.g.cfg.Counters.Add("verifier.open_"+tandem.KindOf(err).String(), 1)
		switch kind := tandem.KindOf(err); kind {
		case tandem.Unavailable, tandem.Deadline, tandem.Canceled:
		case tandem.Exhausted:
			patience = min(patience, fullWait)
		case tandem.Stale, tandem.UnknownSession: // another Open, or a Close of all sessions, came between
			if s.repairs++; s.repairs > mostRepairs {
				return err
			}
			s.epoch++
			s.draft.restart(ctx, s.opening())
		default:
			return tandem.Errorf(op, kind, "opening session %s at the verifier: %w", s.id, err)
		}
		if waited := time.Since(s.lost); waited > patience {
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

// suspect notes the first sign that the verifier is lost.
func (s *session) suspect() {
	if s.lost.IsZero() {
		s.lost = time.Now()
	}
}

// ended is the error of a session whose request's ctx has ended.
func (s *session) ended(ctx context.Context) error {
	return ended(ctx, "in session "+s.id.String())
}

// sinkError is the error of a request whose sink refused to go on. A client that is gone has
// cancelled, unless the sink says better.
func sinkError(err error) error {
	kind := tandem.KindOf(err)
	if e := (*tandem.Error)(nil); kind == tandem.Internal && !errors.As(err, &e) {
		kind = tandem.Canceled
	}
	return tandem.Errorf(op, kind, "output not taken: %w", err)
}

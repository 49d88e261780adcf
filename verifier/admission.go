package verifier

import (
	"fmt"
	"math"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/verifier/accept"
)

// admission makes sessions of openings, and takes tickets to sessions. The schedule's goroutine's.
type admission struct {
	*shared
	blames ledger // of drafters
}

// open makes the session of o, with a constraint, nil for none. Errors: those of checkOpening; Stale for an epoch older than the one held;
// Exhausted; Invalid for a limit beyond all of the memory.
func (a *admission) open(o tandem.Opening, allowed *accept.Constraint) (*session, error) {
	const op = "open"
	m := a.model
	limit, err := checkOpening(m, a.counters, o)
	if err != nil {
		return nil, err
	}
	if err := a.sched.Replace(o); err != nil {
		return nil, err
	}
	nodes := widest(m, o)
	if need := engine.PagesFor(1, limit, nodes-1); need > m.Pages() {
		return nil, tandem.Errorf(op, tandem.Invalid, "limit of %d tokens with trees of %d nodes: they need %d pages of %d tokens, "+
			"all of the memory for keys and values holds %d", limit, nodes, need, engine.PageTokens, m.Pages())
	}
	seq, err := m.NewShared(o.Tenant, o.Tokens[:len(o.Tokens)-1], limit, nodes-1)
	if err != nil {
		return nil, err
	}
	a.found(o.Session)
	a.features.Open(o, seq.Len())
	return newSession(o, limit, allowed, seq, a.shared), nil
}

// found forgets how a session was lost that is held again or has been closed.
func (a *admission) found(id tandem.SessionID) {
	a.out.Found(id)
	delete(a.crowded, id)
}

// session returns the session of that id, or nil.
func (a *admission) session(id tandem.SessionID) *session {
	s, _ := a.sched.Session(id).(*session)
	return s
}

// take takes a ticket that is in the queue: its session is queued for a pass, or it is answered at once.
func (a *admission) take(t tandem.Ticket, at *queued) {
	s := a.session(t.Session)
	var owner uint64
	if s != nil {
		owner = s.Owner
	} else {
		owner = a.out.Owner(t.Session)
	}
	c := begin(t, at, owner, a.out, &a.events)
	stale := func(reason, format string, args ...any) {
		a.counters.Add("tickets.stale_"+reason, 1)
		c.refuse(tandem.Stale, fmt.Sprintf(format, args...))
	}
	_, crowded := a.crowded[t.Session]
	switch {
	case s == nil && crowded:
		a.counters.Add("tickets.crowded_out", 1)
		c.refuse(tandem.Exhausted, fmt.Sprintf("session %v was dropped, since others needed its memory", t.Session))
	case s == nil:
		a.counters.Add("tickets.unknown_session", 1)
		c.refuse(tandem.UnknownSession, fmt.Sprintf("session %v is not held", t.Session))
	case t.Epoch != s.Epoch:
		stale("epoch", "epoch %d: epoch %d is held", t.Epoch, s.Epoch)
	case s.verdict.Base > 0 && t.Base == s.verdict.Base && t.Hash == s.verdict.Hash:
		a.counters.Add("tickets.repeated", 1)
		c.answer(s.verdict)
	case int(t.Base) != len(s.text.Tokens):
		stale("base", "base %d: %d tokens are held", t.Base, len(s.text.Tokens))
	case t.Hash != s.text.Hash:
		stale("hash", "hash of %d tokens is %016x here, %016x there", t.Base, uint64(s.text.Hash), uint64(t.Hash))
	case s.ticket != nil:
		a.counters.Add("tickets.repeated", 1)
		c.forget(nil) // the waiting one will be answered
	default:
		a.prepare(s, c)
	}
}

// prepare queues the session of a ticket that fits its text, or refuses the ticket and blames the drafter of its tree.
func (a *admission) prepare(s *session, c *check) {
	drafter, now := c.ticket.Drafter, time.Now()
	if drafter != "" && a.blames.distrusted(drafter, now) {
		a.counters.Add("tickets.distrusted", 1)
		c.ticket.Tree = tandem.Tree{}
	}
	err := owner.Guard(func() error { return s.prepare(c) })
	if err == nil {
		s.queue(c)
		return
	}
	a.counters.Add("tickets.invalid", 1)
	message := err.Error()
	if drafter != "" {
		message = fmt.Sprintf("drafter %q: %s", drafter, message)
		a.blames.blame(drafter, now)
	}
	c.refuse(tandem.KindOf(err), message)
}

// checkOpening refuses an opening that no session of m can be made of. It returns how many tokens the session may have. Errors: Invalid,
// those of belongs.
func checkOpening(m *engine.Model, counters *tandem.Counters, o tandem.Opening) (limit int, err error) {
	const op = "open"
	cfg := m.Config()
	limit = min(int(o.Limit), cfg.Context)
	switch most := max(widest(m, tandem.Opening{MaxNodes: math.MaxInt}), tandem.DefaultLimits.Nodes); {
	case o.Session == 0:
		return 0, tandem.Errorf(op, tandem.Invalid, "session is 0: want any other number")
	case o.MaxNodes < 1 || o.MaxNodes > most:
		return 0, tandem.Errorf(op, tandem.Invalid, "trees of %d nodes: want 1 to %d", o.MaxNodes, most)
	case limit < 1:
		return 0, tandem.Errorf(op, tandem.Invalid, "limit of %d tokens: want at least 1", o.Limit)
	}
	if err := belongs(m, counters, o); err != nil {
		return 0, err
	}
	limits := tandem.Limits{Context: limit, Vocab: cfg.Vocab}
	if err := tandem.ValidatePromptTokens(o.Tokens, limits); err != nil {
		return 0, err
	}
	if err := o.Sampling.Validate(limits); err != nil {
		return 0, err
	}
	return limit, nil
}

// widest returns how many nodes of a session's trees a pass verifies: as many as get logits. Trees are cut to that.
func widest(m *engine.Model, o tandem.Opening) int {
	return min(o.MaxNodes, m.MaxRows(), m.MaxWanted())
}

// belongs refuses a session that began with another identity or whose tokens are of another vocabulary: its text would
// change. Errors: Unavailable.
func belongs(m *engine.Model, counters *tandem.Counters, o tandem.Opening) error {
	n := m.Names()
	switch {
	case o.Fingerprint != "" && o.Fingerprint != n.Vocabulary:
		counters.Add("refused.vocabulary", 1)
		return tandem.Errorf(tandem.OpVocabulary, tandem.Unavailable,
			"the gateway's vocabulary is %s, that of the verifier's model %s is %s: want one model file for both", o.Fingerprint,
			m.Config().Name, n.Vocabulary)
	case o.Identity != "" && o.Identity != n.Identity:
		counters.Add("refused.identity", 1)
		return tandem.OtherIdentity(o.Session, o.Identity, n.Identity)
	}
	return nil
}

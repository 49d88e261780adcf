package verifier

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
)

// session is one request's state in the target model; see Verifier for its invariants.
type session struct {
	id       tandem.SessionID
	owner    uint64 // see tandem.Opening
	epoch    tandem.Epoch
	limit    tandem.Position // of tokens: the smaller of the gateway's limit and the context
	maxNodes int
	sampling tandem.Sampling
	history  *sample.History // of tokens, as far as sampling needs it
	seq      *engine.Sequence
	tokens   []tandem.Token
	hash     tandem.PrefixHash
	prompt   *prompt        // what waits for the prompt to be in; nil once it is
	opened   *prompt        // what opened it
	ticket   *check         // the one that waits
	verdict  tandem.Verdict // the last; Base 0 if there is none
	accepted []int32        // tree rows of its path, not yet in place
	used     time.Time

	answered time.Time     // when the last verdict was given; zero before the first
	pace     time.Duration // running mean of the time from a verdict to the next ticket; 0 before the first
	rows     int           // of the last tree
	turn     int           // number of passes before which others' tickets come first
}

// paceOf is over about how many rounds the running mean of a session's pace goes.
const paceOf = 4

// came notes when a ticket arrived.
func (s *session) came(at time.Time) {
	if s.answered.IsZero() || at.Before(s.answered) {
		return
	}
	took := at.Sub(s.answered)
	if s.pace == 0 {
		s.pace = took
	}
	s.pace += (took - s.pace) / paceOf
}

// due returns when the session's next ticket is expected; false if none is: it has one, has just begun, or is
// late by more than it ever took, as a session is whose client reads slowly or that has ended.
func (s *session) due(now time.Time) (time.Time, bool) {
	if s.ticket != nil || s.prompt != nil || s.pace == 0 || now.After(s.overdue()) {
		return time.Time{}, false
	}
	return s.answered.Add(s.pace), true
}

// overdue returns from when on the session's next ticket is not expected any more.
func (s *session) overdue() time.Time { return s.answered.Add(2*s.pace + time.Millisecond) }

// prompt is one call of Open.
type prompt struct {
	ctx    context.Context // of the call
	reused int             // of its tokens: found in memory; for the caller once ended has delivered
	ended  chan error
}

// open starts a session. Runs on the owner's goroutine, as everything below.
func (v *Verifier) open(o tandem.Opening, p *prompt) error {
	const op = "open"
	m := v.cfg.Model
	cfg := m.Config()
	limit := min(int(o.Limit), cfg.Context)
	as := tandem.Request{Tokens: o.Tokens, MaxTokens: 1, Sampling: o.Sampling}
	switch widest := min(m.MaxRows(), m.MaxWanted()); {
	case o.Session == 0:
		return tandem.Errorf(op, tandem.Invalid, "session is 0: want any other number")
	case o.MaxNodes < 1 || o.MaxNodes > widest:
		return tandem.Errorf(op, tandem.Invalid, "trees of %d nodes: want 1 to %d", o.MaxNodes, widest)
	case limit < 1:
		return tandem.Errorf(op, tandem.Invalid, "limit of %d tokens: want at least 1", o.Limit)
	}
	if err := as.Validate(tandem.Limits{Context: limit, Vocab: cfg.Vocab}); err != nil {
		return err
	}
	if old := v.sessions[o.Session]; old != nil {
		if o.Epoch < old.epoch {
			return tandem.Errorf(op, tandem.Stale, "epoch %d of session %v: epoch %d is held", o.Epoch, o.Session, old.epoch)
		}
		v.drop(old, tandem.Errorf(op, tandem.Stale, "session %v was opened again", o.Session))
	}
	seq, err := m.NewShared(o.Tenant, o.Tokens[:len(o.Tokens)-1], limit, o.MaxNodes-1)
	v.countEvicted()
	if err != nil {
		return err
	}
	p.reused = seq.Len()
	s := &session{id: o.Session, owner: o.Owner, epoch: o.Epoch, limit: tandem.Position(limit), maxNodes: o.MaxNodes,
		sampling: o.Sampling, history: sample.NewHistory(o.Sampling, o.Tokens, o.Prompt), seq: seq,
		tokens: slices.Clone(o.Tokens), hash: tandem.EmptyPrefix.Add(o.Tokens...), prompt: p, opened: p, used: time.Now()}
	v.sessions[s.id] = s
	v.opening = append(v.opening, s)
	return nil
}

// ready ends the wait for the session's prompt.
func (v *Verifier) ready(s *session, err error) {
	if s.prompt == nil {
		return
	}
	v.opening = slices.DeleteFunc(v.opening, func(x *session) bool { return x == s })
	if n := s.prompt.reused; err == nil && n > 0 {
		v.cfg.Counters.Add("prefix.hits", 1)
		v.cfg.Counters.Add("prefix.reused_tokens", int64(n))
	}
	s.prompt.ended <- err
	s.prompt = nil
	s.used = time.Now()
}

// drop forgets the session, but not what it computed (engine.Sequence.Close). What waits for it ends with err.
func (v *Verifier) drop(s *session, err error) {
	delete(v.sessions, s.id)
	v.ready(s, err)
	if c := s.ticket; c != nil {
		v.refuse(c, tandem.KindOf(err), err.Error())
	}
	s.seq.Close()
	v.countEvicted()
}

// countEvicted counts what was forgotten of earlier prefixes since the last time.
func (v *Verifier) countEvicted() {
	if now := v.cfg.Model.EvictedPages(); now > v.evicted {
		v.cfg.Counters.Add("prefix.evicted_pages", now-v.evicted)
		v.evicted = now
	}
}

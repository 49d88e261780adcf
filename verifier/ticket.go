package verifier

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/schedule/owner"
)

// check is a ticket on its way to a verdict.
type check struct {
	ticket tandem.Ticket
	at     *place      // where it waits for a pass
	s      *session    // nil until it is queued
	tree   tandem.Tree // the part of the ticket's tree that is verified
	nodes  []int32     // per node of tree: its number in the ticket's tree
	depths []int32
	deep   int // the deepest of the guesses

	ctx       context.Context // of the process stage
	end       tandem.End
	verifying tandem.End // ends the verify stage; nil while there is none
}

// admit takes a ticket that has a place: it is queued for a pass or answered at once.
func (v *Verifier) admit(t tandem.Ticket, at *place) {
	came := at.came
	attrs := []tandem.Attr{{Key: "epoch", Int: int64(t.Epoch)}, {Key: "base", Int: int64(t.Base)}}
	if t.Trace != "" {
		attrs = append(attrs, tandem.Link(t.Trace))
	}
	c := &check{ticket: t, at: at}
	c.ctx, c.end = v.cfg.Events.Begin(v.cfg.Events.Adopt(context.Background(), t.Trace), tandem.StageProcess, attrs...)
	s := v.session(t.Session)
	stale := func(reason, format string, args ...any) {
		v.cfg.Counters.Add("tickets.stale_"+reason, 1)
		v.refuse(c, tandem.Stale, fmt.Sprintf(format, args...))
	}
	_, crowded := v.crowded[t.Session]
	switch {
	case s == nil && crowded:
		v.cfg.Counters.Add("tickets.crowded_out", 1)
		v.refuse(c, tandem.Exhausted, fmt.Sprintf("session %v was dropped, since others needed its memory", t.Session))
	case s == nil:
		v.cfg.Counters.Add("tickets.unknown_session", 1)
		v.refuse(c, tandem.UnknownSession, fmt.Sprintf("session %v is not held", t.Session))
	case t.Epoch != s.Epoch:
		stale("epoch", "epoch %d: epoch %d is held", t.Epoch, s.Epoch)
	case s.verdict.Base > 0 && t.Base == s.verdict.Base && t.Hash == s.verdict.Hash:
		v.cfg.Counters.Add("tickets.repeated", 1)
		v.answer(c, s.verdict)
	case int(t.Base) != len(s.tokens):
		stale("base", "base %d: %d tokens are held", t.Base, len(s.tokens))
	case t.Hash != s.hash:
		stale("hash", "hash of %d tokens is %016x here, %016x there", t.Base, uint64(s.hash), uint64(t.Hash))
	case s.ticket != nil:
		v.cfg.Counters.Add("tickets.repeated", 1)
		v.forget(c, nil) // the waiting one will be answered
	default:
		now := time.Now()
		if t.Drafter != "" && v.blames.distrusted(t.Drafter, now) {
			v.cfg.Counters.Add("tickets.distrusted", 1)
			c.ticket.Tree = tandem.Tree{}
		}
		if err := owner.Guard(func() error { return c.prepare(s, v.cfg.Model.Config().Vocab) }); err != nil {
			v.cfg.Counters.Add("tickets.invalid", 1)
			message := err.Error()
			if t.Drafter != "" {
				message = fmt.Sprintf("drafter %q: %s", t.Drafter, message)
				v.blames.blame(t.Drafter, now)
			}
			v.refuse(c, tandem.KindOf(err), message)
			return
		}
		c.s, s.ticket = s, c
		v.sched.Queue(s, nil, came, c.tree.Len())
	}
}

// prepare checks the ticket's tree and cuts it to the session's room. Every error is the fault of
// the tree's maker, except that of a full session.
func (c *check) prepare(s *session, vocab int) error {
	const op = "ticket"
	root := s.tokens[len(s.tokens)-1]
	tree := c.ticket.Tree
	if tree.Tokens == nil {
		tree = tandem.Root(root)
	}
	deepest := s.limit - c.ticket.Base - 1 // a path of that many nodes leaves room for the token after it
	if deepest < 0 {
		return tandem.Errorf(op, tandem.Invalid, "base %d: session %v holds at most %d tokens", c.ticket.Base, s.ID, s.limit)
	}
	if err := tree.Validate(s.maxNodes, vocab); err != nil {
		return err
	}
	if w, ok := s.v.selfDraft(tandem.PPD); ok {
		if err := checkPrompts(tree, w); err != nil {
			return err
		}
	} else if n := tree.Guesses(); tree.Prompts > 0 { // the side file is gone since they were placed; the guesses are as good as before
		s.v.cfg.Counters.Add("guesses.prompts_dropped", int64(tree.Prompts))
		tree = tandem.Tree{Tokens: tree.Tokens[:n], Parents: tree.Parents[:n]}
	}
	if tree.Tokens[0] != root {
		return tandem.Errorf(op, tandem.Invalid, "root is token %d: token %d is committed at %d", tree.Tokens[0], root, c.ticket.Base-1)
	}
	depths, _ := tree.Depths()
	kept := make([]int32, len(depths)) // new numbers
	for i, d := range depths {
		if d > int32(deepest) {
			continue
		}
		kept[i] = int32(len(c.nodes))
		parent := int32(-1)
		if i > 0 {
			parent = kept[tree.Parents[i]]
		}
		c.tree.Tokens, c.tree.Parents = append(c.tree.Tokens, tree.Tokens[i]), append(c.tree.Parents, parent)
		c.nodes, c.depths = append(c.nodes, int32(i)), append(c.depths, d)
		if i < tree.Guesses() {
			c.deep = max(c.deep, int(d))
		} else {
			c.tree.Prompts++
		}
	}
	return nil
}

// refuse answers a ticket with the reason why there is no verdict.
func (v *Verifier) refuse(c *check, k tandem.Kind, message string) {
	v.answer(c, tandem.Verdict{Session: c.ticket.Session, Epoch: c.ticket.Epoch, Base: c.ticket.Base, Hash: c.ticket.Hash, Kind: k,
		Message: message})
}

// answer delivers the verdict on a ticket and forgets the ticket.
func (v *Verifier) answer(c *check, verdict tandem.Verdict) {
	v.out.put(v.ownerOf(c), verdict)
	var err error
	outcome := "rejected"
	switch {
	case verdict.Kind == tandem.Stale:
		outcome = "stale"
	case verdict.Kind != tandem.OK:
		outcome, err = verdict.Kind.String(), tandem.Errorf("verify", verdict.Kind, "%s", verdict.Message)
	case len(verdict.Path) == c.deep:
		outcome = "accepted"
	case len(verdict.Path) > 0:
		outcome = "partial"
	}
	v.forget(c, err, tandem.Attr{Key: "nodes", Int: int64(verdict.Nodes)}, tandem.Attr{Key: "accepted", Int: int64(len(verdict.Path))},
		tandem.Attr{Key: "batch", Int: int64(verdict.Batch)}, tandem.Attr{Key: "outcome", Str: outcome})
}

// verified ends the verify stage, if it has begun.
func (c *check) verified(err error, attrs ...tandem.Attr) {
	if c.verifying != nil {
		c.verifying(err, attrs...)
		c.verifying = nil
	}
}

// forget ends a ticket's stages and makes room for another.
func (v *Verifier) forget(c *check, err error, attrs ...tandem.Attr) {
	if c.s != nil {
		c.s.ticket = nil
		v.sched.End(c.s, nil)
	}
	c.verified(err)
	c.end(err, attrs...)
	v.room.leave(c.at)
}

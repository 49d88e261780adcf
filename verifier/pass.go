package verifier

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/spec"
)

// Missing implements schedule.Session: what the prompt lacks. The root of a tree is part of what is verified.
func (s *session) Missing() int { return len(s.tokens) - 1 - s.seq.Len() }

// Want implements schedule.Session: a tree to verify, or a piece of the prompt.
func (s *session) Want(space schedule.Space) schedule.Part {
	if s.Opening() {
		missing := s.tokens[s.seq.Len() : len(s.tokens)-1]
		return schedule.Part{Part: engine.Part{Seq: s.seq, Extend: missing[:min(len(missing), space.Rows)]}, TopK: 1}
	}
	c := s.ticket
	n := c.tree.Len()
	if n > min(space.Rows, space.Wanted) {
		return schedule.Part{}
	}
	s.v.room.leave(c.at)
	parents := make([]int32, n-1)
	for i, parent := range c.tree.Parents[1:] {
		parents[i] = parent - 1 // rows do not count the root
	}
	if c.verifying == nil {
		_, c.verifying = s.v.cfg.Events.Begin(c.ctx, tandem.StageVerify, tandem.Attr{Key: "width", Int: int64(n)},
			tandem.Attr{Key: "depth", Int: int64(c.deep)})
	}
	return schedule.Part{Part: engine.Part{Seq: s.seq, Want: engine.WantTail, Extend: s.tokens[s.seq.Len():],
		Nodes: c.tree.Tokens[1:], Parents: parents}, TopK: 1}
}

// Take implements schedule.Session: it answers the ticket.
func (s *session) Take(_ schedule.Part, out *engine.Output, first int, pass schedule.Pass) {
	c := s.ticket
	if c == nil || s.Opening() {
		return
	}
	verdict := s.judge(c, out, first)
	c.verified(nil, tandem.Attr{Key: "device_ns", Int: int64(pass.Spent)}, tandem.Attr{Key: "rows", Int: int64(pass.Rows)},
		tandem.Attr{Key: "batch", Int: int64(pass.Parts)})
	verdict.Batch, verdict.Rows = pass.Parts, pass.Rows
	verdict.Busy += pass.Spent
	s.verdict = verdict
	s.v.cfg.Counters.Add("verdicts", 1)
	s.v.answer(c, verdict)
}

// Settle implements schedule.Session: it makes the rows of the latest verdict's path positions of the cache. The verdict does not depend
// on that, so it can wait until the verdicts are on their way.
func (s *session) Settle() error {
	if s.Opening() {
		return nil
	}
	rows := s.accepted
	s.accepted = nil
	return s.seq.Commit(rows)
}

// Left implements schedule.Session.
func (s *session) Left(err error) {
	s.v.out.miss(s.Owner, s.ID)
	if c := s.ticket; c != nil {
		s.v.refuse(c, tandem.KindOf(err), err.Error())
	}
}

// judge accepts the nodes that the target agrees with and advances the session, except its cache: see Settle. The root's logits are
// in wanted row first, those of node i in row first+i.
func (s *session) judge(c *check, out *engine.Output, first int) tandem.Verdict {
	begun := time.Now()
	var logprobs []tandem.Logprob
	path, tokens := spec.Accept(c.tree, func(node int32) tandem.Token {
		if node > 0 {
			s.history.Push(c.tree.Tokens[node]) // the text before a draw is that of the path down to its node
		}
		t := s.draw(out, first+int(node), c.ticket.Base+tandem.Position(c.depths[node]))
		if p := s.sampling; p.Logprobs {
			logprobs = append(logprobs, s.v.sampler.Logprob(out.Logits(first+int(node)), t, p.TopLogprobs))
		}
		return t
	})
	s.history.Push(tokens[len(tokens)-1])
	verdict := tandem.Verdict{Session: s.ID, Epoch: s.Epoch, Base: c.ticket.Base, Hash: c.ticket.Hash,
		Tokens: tokens, Logprobs: logprobs, Nodes: c.tree.Len(), Path: make([]int32, len(path))}
	s.accepted = make([]int32, len(path))
	for i, node := range path {
		verdict.Path[i], s.accepted[i] = c.nodes[node], node-1
	}
	s.tokens = append(s.tokens, tokens...)
	s.hash = s.hash.Add(tokens...)
	verdict.Busy = time.Since(begun)
	return verdict
}

// draw returns the token that follows at a position, by the logits of a wanted row and the text that s.history has
// counted.
func (s *session) draw(out *engine.Output, row int, at tandem.Position) tandem.Token {
	if s.sampling.Temperature == 0 && !s.sampling.Shapes() {
		return tandem.Token(out.Top(row).IDs[0])
	}
	return s.v.sampler.Draw(s.v.sampler.Shape(out.Logits(row), s.sampling, s.history), s.sampling, at)
}

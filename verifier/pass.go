package verifier

import (
	"errors"
	"slices"
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
		p := schedule.Part{Part: engine.Part{Seq: s.seq, Extend: missing[:min(len(missing), space.Rows)]}, TopK: 1}
		if len(p.Extend) == len(missing) {
			s.promptsAfter(&p, space)
		}
		return p
	}
	c := s.ticket
	n := c.tree.Len()
	if n > space.Rows || c.tree.Guesses() > space.Wanted {
		return schedule.Part{}
	}
	s.v.room.leave(c.at)
	parents := make([]int32, n-1)
	for i, parent := range c.tree.Parents[1:] {
		parents[i] = parent - 1 // rows do not count the root
	}
	nodes := c.tree.Tokens[1:]
	if prompts := c.tree.Prompts; prompts > 0 {
		nodes = slices.Clone(nodes)
		for i := len(nodes) - prompts; i < len(nodes); i++ {
			nodes[i] = -1 - nodes[i]
		}
		s.v.cfg.Counters.Add("guesses.prompt_rows", int64(prompts))
	}
	if c.verifying == nil {
		_, c.verifying = s.v.cfg.Events.Begin(c.ctx, tandem.StageVerify, tandem.Attr{Key: "width", Int: int64(n)},
			tandem.Attr{Key: "depth", Int: int64(c.deep)})
	}
	return schedule.Part{Part: engine.Part{Seq: s.seq, Want: engine.WantTail, Extend: s.tokens[s.seq.Len():],
		Nodes: nodes, Parents: parents}, TopK: max(c.successors(), 1)}
}

// Take implements schedule.Session: it answers the ticket, or leaves that to Verifier.guess.
func (s *session) Take(p schedule.Part, out *engine.Output, first int, pass schedule.Pass) {
	s.took = took{out: out, part: p.At, extended: len(p.Extend)}
	c := s.ticket
	if s.Opening() {
		s.foretell(p, out)
		return
	}
	if c == nil {
		return
	}
	verdict, err := s.judge(c, out, first)
	if err != nil {
		s.v.cfg.Counters.Add("verdicts.unsound", 1)
		s.v.refuse(c, tandem.Unsupported, err.Error())
		return
	}
	s.v.features.expect(s.ID, len(s.tokens)-1)
	attrs := []tandem.Attr{{Key: "device_ns", Int: int64(pass.Spent)}, {Key: "rows", Int: int64(pass.Rows)},
		{Key: "batch", Int: int64(pass.Parts)}}
	if waited := out.Waited(); waited > 0 {
		attrs = append(attrs, tandem.Attr{Key: "read_wait_ns", Int: int64(waited)}) // of device_ns: for streamed weights
	}
	if n := pass.Experts.All(); n > 0 {
		attrs = append(attrs, tandem.Attr{Key: "experts", Int: int64(n)})
	}
	c.verified(nil, attrs...)
	verdict.Batch, verdict.Rows, verdict.Experts = pass.Parts, pass.Rows, pass.Experts
	verdict.Busy += pass.Spent
	if !s.later(c, verdict, p, out) {
		s.answer(c, verdict)
	}
}

// answer gives the verdict of a pass on the session's ticket.
func (s *session) answer(c *check, verdict tandem.Verdict) {
	s.verdict = verdict
	s.v.cfg.Counters.Add("verdicts", 1)
	s.v.answer(c, verdict)
}

// Settle implements schedule.Session: it makes the rows of the latest verdict's path positions of the cache. The verdict does not depend
// on that, so it can wait until the verdicts are on their way.
func (s *session) Settle() error {
	rows := s.accepted
	s.accepted = nil
	s.keepFeatures(rows)
	if s.Opening() {
		rows = nil // prompt rows
	}
	err := s.seq.Commit(rows)
	s.stored(false)
	return err
}

// took is what Settle needs of a session's part of a pass.
type took struct {
	out      *engine.Output
	part     int // of out
	extended int // rows before the tree's
}

// keepFeatures keeps the states of what a pass has committed: the rows that extended the prefix and those of the accepted nodes.
func (s *session) keepFeatures(accepted []int32) {
	t := s.took
	if s.took = (took{}); t.out == nil || s.v.features == nil {
		return
	}
	var rows []int
	for i := range t.extended {
		rows = append(rows, i)
	}
	for _, node := range accepted {
		rows = append(rows, t.extended+int(node))
	}
	s.v.features.keep(s.ID, s.seq.Len()-t.extended, t.out, t.part, rows)
}

// Opened implements schedule.Session.
func (s *session) Opened() {
	s.v.features.decided(s.ID, s.seq.Len())
	s.stored(true)
}

// Left implements schedule.Session.
func (s *session) Left(err error) {
	s.stored(true)
	s.v.features.forget(s.ID)
	s.v.out.miss(s.Owner, s.ID)
	if errors.Is(err, tandem.Exhausted) {
		s.v.crowd(s.ID)
	}
	if c := s.ticket; c != nil {
		s.v.refuse(c, tandem.KindOf(err), err.Error())
	}
}

// crowd remembers a session that was dropped for lack of memory: its next ticket is told so. Their number is bounded, since a gateway may
// never come back.
func (v *Verifier) crowd(id tandem.SessionID) {
	for other := range v.crowded {
		if len(v.crowded) < mostMissing {
			break
		}
		delete(v.crowded, other)
	}
	v.crowded[id] = struct{}{}
}

// judge accepts the nodes that the target agrees with and advances the session, except its cache: see Settle. The root's logits are
// in wanted row first, those of node i in row first+i. It fails, and the session has to end, if the logits that it needs are no numbers.
func (s *session) judge(c *check, out *engine.Output, first int) (tandem.Verdict, error) {
	begun := time.Now()
	var path []int32
	var tokens []tandem.Token
	var logprobs []tandem.Logprob
	if s.sampling.Typical() && s.sampling.Temperature > 0 {
		path, tokens, logprobs = s.typical(c, out, first)
	} else {
		path, tokens, logprobs = s.exact(c, out, first)
	}
	for _, node := range append([]int32{0}, path...) {
		if err := out.Sound(first + int(node)); err != nil {
			return tandem.Verdict{}, err
		}
	}
	verdict := tandem.Verdict{Session: s.ID, Epoch: s.Epoch, Base: c.ticket.Base, Hash: c.ticket.Hash,
		Tokens: tokens, Logprobs: logprobs, Nodes: c.tree.Len(), Path: make([]int32, len(path))}
	s.accepted = make([]int32, len(path))
	for i, node := range path {
		verdict.Path[i], s.accepted[i] = c.nodes[node], node-1
	}
	s.tokens = append(s.tokens, tokens...)
	s.hash = s.hash.Add(tokens...)
	for node := range c.tree.Guesses() {
		if n := c.successors(); n > 0 {
			for _, id := range out.Top(first + node).IDs {
				verdict.Successors = append(verdict.Successors, tandem.Token(id))
			}
		}
	}
	verdict.Busy = time.Since(begun)
	return verdict, nil
}

// successors returns how many of the target's likeliest tokens after each node the verdict is to carry.
func (c *check) successors() int { return min(max(c.ticket.Successors, 0), tandem.MostSuccessors) }

// exact accepts the nodes that the target draws, and advances s.history. It returns the path, its tokens and the one after them,
// and their log-probabilities if they are wanted.
func (s *session) exact(c *check, out *engine.Output, first int) (path []int32, tokens []tandem.Token, logprobs []tandem.Logprob) {
	path, tokens = spec.Accept(c.tree, func(node int32) tandem.Token {
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
	return path, tokens, logprobs
}

// draw returns the token that follows at a position, by the logits of a wanted row and the text that s.history has
// counted.
func (s *session) draw(out *engine.Output, row int, at tandem.Position) tandem.Token {
	if s.sampling.Temperature == 0 && !s.sampling.Shapes() {
		return tandem.Token(out.Top(row).IDs[0])
	}
	return s.v.sampler.Draw(s.v.sampler.Shape(out.Logits(row), s.sampling, s.history), s.sampling, at)
}

package verifier

import (
	"errors"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/verifier/accept"
	"github.com/tandem-llm/tandem/verifier/disk"
	"github.com/tandem-llm/tandem/verifier/guesses"
)

// Missing implements schedule.Session: what the prompt lacks. The root of a tree is part of what is verified.
func (s *session) Missing() int { return len(s.text.Tokens) - 1 - s.seq.Len() }

// Want implements schedule.Session: a tree to verify, or a piece of the prompt.
func (s *session) Want(space schedule.Space) schedule.Part {
	if s.Opening() {
		missing := s.text.Tokens[s.seq.Len() : len(s.text.Tokens)-1]
		p := schedule.Part{Part: engine.Part{Seq: s.seq, Extend: missing[:min(len(missing), space.Rows)]}, TopK: 1}
		if len(p.Extend) == len(missing) {
			rows := min(space.Rows-len(p.Extend), s.widest-1)
			p.Nodes, p.Parents = s.guesses.PromptRows(s.selfDrafts, time.Since(s.begun), s.seq.Len()+len(p.Extend), rows,
				int(s.limit)-len(s.text.Tokens))
		}
		return p
	}
	c := s.ticket
	n := c.tree.Len()
	if n > space.Rows || c.tree.Guesses() > space.Wanted {
		return schedule.Part{}
	}
	c.at.leave()
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
		s.counters.Add("guesses.prompt_rows", int64(prompts))
	}
	c.verify(&s.events)
	return schedule.Part{Part: engine.Part{Seq: s.seq, Want: engine.WantTail, Extend: s.text.Tokens[s.seq.Len():],
		Nodes: nodes, Parents: parents}, TopK: max(c.successors(), 1)}
}

// Take implements schedule.Session: it answers the ticket, or leaves that to guesses.Maker.Run.
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
		if errors.Is(err, accept.ErrNoToken) {
			s.counters.Add("constraints.dead_end", 1)
		} else {
			s.counters.Add("verdicts.unsound", 1)
		}
		s.refuse(c, tandem.Unsupported, err.Error())
		return
	}
	s.features.Expect(s.ID, len(s.text.Tokens)-1)
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
	if !s.ask(c, verdict, p, out) {
		s.answer(c, verdict)
	}
}

// ask reports whether the verdict on a ticket waits for guesses, and then has them made.
func (s *session) ask(c *check, verdict tandem.Verdict, p schedule.Part, out *engine.Output) bool {
	node := int32(0)
	if n := len(s.accepted); n > 0 {
		node = s.accepted[n-1] + 1
	}
	return s.guesses.Ask(guesses.Request{SelfDrafts: s.guesses.Asked(c.ticket.SelfDrafts), Part: p, Out: out, Tree: c.tree, Node: node,
		Path: s.accepted, Text: s.text.Tokens, Sampling: s.text.Sampling, Held: s.held,
		Answer: func(made []tandem.Guess, took time.Duration) {
			if s.ticket == c {
				verdict.Guesses, verdict.Guessing = made, took
				s.answer(c, verdict)
			}
		}})
}

// foretell has the guesses of a session made whose prompt the pass has ended.
func (s *session) foretell(p schedule.Part, out *engine.Output) {
	if s.Missing() > 0 || len(p.Extend) == 0 {
		return
	}
	t := tandem.Tree{Tokens: []tandem.Token{p.Extend[len(p.Extend)-1]}, Parents: []int32{-1}, Prompts: len(p.Nodes)}
	for i, token := range p.Nodes {
		t.Tokens, t.Parents = append(t.Tokens, -1-token), append(t.Parents, p.Parents[i]+1)
	}
	s.guesses.Ask(guesses.Request{SelfDrafts: s.guesses.First(s.selfDrafts, time.Since(s.begun)), Part: p, Out: out, Tree: t,
		Text: s.text.Tokens, Sampling: s.text.Sampling, Held: s.held,
		Answer: func(made []tandem.Guess, _ time.Duration) { s.first = made }})
}

func (s *session) held() bool { return s.sched.Holds(s) }

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
	s.store(false)
	return err
}

// keepFeatures keeps the states of what a pass has committed: the rows that extended the prefix and those of the accepted nodes.
func (s *session) keepFeatures(accepted []int32) {
	t := s.took
	if s.took = (took{}); t.out == nil || s.features == nil {
		return
	}
	var rows []int
	for i := range t.extended {
		rows = append(rows, i)
	}
	for _, node := range accepted {
		rows = append(rows, t.extended+int(node))
	}
	s.features.Keep(s.ID, s.seq.Len()-t.extended, t.out, t.part, rows)
}

// Opened implements schedule.Session.
func (s *session) Opened() {
	s.features.Decided(s.ID, s.seq.Len())
	s.store(true)
}

// Left implements schedule.Session.
func (s *session) Left(err error) {
	s.store(true)
	s.features.Forget(s.ID)
	s.out.Miss(s.Owner, s.ID)
	if errors.Is(err, tandem.Exhausted) {
		s.crowded.add(s.ID)
	}
	if c := s.ticket; c != nil {
		s.refuse(c, tandem.KindOf(err), err.Error())
	}
}

// store has the keeper keep what is new of the session's text: all of it if this is the last time for a while, else only if it is much.
func (s *session) store(last bool) {
	if s.keeper == nil {
		return
	}
	n := s.seq.Len()
	text := disk.Text{Session: s.ID, Tenant: s.tenant, Tokens: s.text.Tokens[:n:n]}
	if !s.seq.Shares() { // a fault, whose cause may be in what was read
		s.keeper.Remove(text)
		return
	}
	s.kept = s.keeper.Keep(text, s.kept, last)
}

// judge accepts the nodes that the target agrees with and advances the session, except its cache: see Settle. The root's logits are
// in wanted row first, those of node i in row first+i. It fails, and the session has to end, if the logits that it needs are no numbers.
func (s *session) judge(c *check, out *engine.Output, first int) (tandem.Verdict, error) {
	begun := time.Now()
	a, err := s.text.Accept(accept.Tree{Tree: c.tree, Depths: c.depths, Out: out, First: first})
	if err != nil {
		return tandem.Verdict{}, err
	}
	verdict := tandem.Verdict{Session: s.ID, Epoch: s.Epoch, Base: c.ticket.Base, Hash: c.ticket.Hash,
		Tokens: a.Tokens, Logprobs: a.Logprobs, Nodes: c.tree.Len(), Path: make([]int32, len(a.Path))}
	s.accepted = make([]int32, len(a.Path))
	for i, node := range a.Path {
		verdict.Path[i], s.accepted[i] = c.nodes[node], node-1
	}
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

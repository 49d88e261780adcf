package grow

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/spec"
)

// Want implements schedule.Session: the next rows of the growing tree, or a piece of the tokens that it lacks.
func (s *Session) Want(space schedule.Space) schedule.Part {
	p := schedule.Part{Part: engine.Part{Seq: s.Cache}, TopK: 1}
	if n := s.Missing(); n > 0 {
		s.extend(&p.Part, s.Text.Tokens[s.Held():][:s.Cache.Follow(min(n, space.Rows))], space.Wanted)
		if s.Opening() || s.filling() || len(p.Extend) < n {
			s.Parts.Passes.Complete(&p.Part, space.Rows, false)
			return p
		}
	} else {
		s.Parts.Trees.Nodes(&p.Part, min(space.Rows, space.Wanted))
	}
	if space.Wanted == 0 {
		return schedule.Part{}
	}
	s.Parts.Passes.Complete(&p.Part, space.Rows, true)
	p.Want, p.TopK = max(p.Want, engine.WantTail), max(s.Width(), s.Draft.Traits.Candidates)
	if trees, ok := s.Parts.Trees.(Chains); ok && s.Draft.Config.Model.Chains() && s.Vocab.greedy() {
		size := p.Size()
		s.chain(&p.Part, min(trees.Chain(), space.Rows-size.Rows, space.Wanted-size.Wanted, s.Limits.TreeRows-s.Cache.Nodes()-len(p.Nodes)))
	}
	return p
}

// chain adds a chain of n rows to a part.
func (s *Session) chain(part *engine.Part, n int) {
	for range n {
		part.Parents = append(part.Parents, int32(s.Cache.Nodes()+len(part.Nodes))-1)
		part.Nodes = append(part.Nodes, 0)
	}
	part.Chain = max(n, 0)
}

// extend gives the part the next tokens that its session lacks. Those that hindsight is about get logits, which show what would have been
// guessed there, if the pass has room for so many rows with logits: hindsight is not worth waiting for.
func (s *Session) extend(part *engine.Part, tokens []tandem.Token, wanted int) {
	before := len(s.Text.Tokens) - 1 - tandem.MaxHindsight - s.Held()
	if s.Draft.Traits.Mute {
	} else if before > 0 {
		tokens = tokens[:min(len(tokens), before)]
	} else if len(tokens) <= wanted && s.Recall.Of(len(s.Text.Tokens)).Tokens == 0 {
		part.Want = engine.WantAll
	}
	part.Extend = s.Vocab.Known(tokens)
}

// Take implements schedule.Session. Rows without a waiting job were run ahead.
func (s *Session) Take(p schedule.Part, out *engine.Output, first int, pass schedule.Pass) {
	begun, cost := time.Now(), time.Duration(0)
	part, ahead := &p.Part, !s.Busy()
	switch {
	case ahead:
		cost = max(pass.Spent/time.Duration(pass.Rows), 1)
		s.Lookahead.note(len(part.Nodes), pass.Spent)
		s.Draft.Config.Counters.Add("ahead.nodes", int64(len(part.Nodes)))
		s.Draft.Config.Counters.Add("ahead.busy_ns", int64(cost)*int64(len(part.Nodes)))
	case !s.Opening() && !s.filling():
		s.Job.Busy += pass.Spent
		s.Job.Passes += 1 + part.Chain
	}
	tail := first
	if n := len(part.Extend); part.Want == engine.WantAll {
		tail += n - 1
		s.recall(out, first, n)
	}
	if part.Chain > 0 && len(part.Extend) > 0 { // it follows the text
		first = tail + 1
	}
	tree := !ahead && !s.Opening() && !s.filling() && s.Missing() == 0
	s.Parts.Passes.Take(Result{Part: p, Out: out, Tail: tail, First: first, Tree: tree, Cost: cost})
	switch {
	case tree:
		s.advance(begun)
	case s.filling() && !s.Opening() && s.Missing() == 0:
		s.Draft.Sched.End(s, nil)
	}
}

// recall notes which tokens of the text were guessed by the n rows that the cache has got now. first is the wanted row of the first of
// them.
func (s *Session) recall(out *engine.Output, first, n int) {
	for i, next := 0, s.Held()-n+1; i < n && next+i < len(s.Text.Tokens); i++ {
		var list []spec.Candidate
		if next+i < s.prompt { // the target did not draw it
			list = s.Vocab.likeliest(out, first+i, 1)
		} else {
			list = s.Vocab.Guesses(out, first+i, 1, tandem.Position(next+i))
		}
		s.Recall.Saw(next+i, len(list) > 0 && list[0].Token == s.Text.Tokens[next+i])
	}
}

// Spare implements schedule.Session: rows ahead of a proposal, as long as they are worth a pass.
func (s *Session) Spare(space schedule.Space) schedule.Part {
	p := schedule.Part{Part: engine.Part{Seq: s.Cache, Want: engine.WantTail}, TopK: s.Width()}
	if s.Parts.Ahead.Renew(&p.Part, space.Rows) {
		return p
	}
	if s.Lookahead.prepare(&p.Part, min(space.Rows, aheadShare, s.Lookahead.left), s.Room()) < s.Draft.Config.AheadGain {
		return schedule.Part{}
	}
	s.Parts.Passes.Complete(&p.Part, space.Rows, false)
	return p
}

// Opened implements schedule.Session.
func (s *Session) Opened() { s.goal, s.hindsight = 0, s.Recall.Of(len(s.Text.Tokens)) }

// Left implements schedule.Session.
func (s *Session) Left(error) {
	if t := s.Parts.Opener; t != nil {
		t.Closed()
	}
}

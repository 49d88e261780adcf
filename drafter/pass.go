package drafter

import (
	"math"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/spec"
)

// Missing implements schedule.Session: the tokens that the cache lacks before the session is open, or before its tree can grow.
func (s *session) Missing() int {
	if s.Opening() || s.filling() {
		return max(s.seq.Lacks(s.goal-s.skipped), 0)
	}
	return s.seq.Lacks(len(s.Tokens) - s.skipped)
}

// Want implements schedule.Session: the next rows of the growing tree, or a piece of the tokens that it lacks.
func (s *session) Want(space schedule.Space) schedule.Part {
	p := schedule.Part{Part: engine.Part{Seq: s.seq}, TopK: 1}
	if n := s.Missing(); n > 0 {
		s.extend(&p.Part, s.Tokens[s.held():][:s.seq.Follow(min(n, space.Rows))], space.Wanted)
		if s.Opening() || s.filling() || len(p.Extend) < n {
			s.grower.complete(&p.Part, space.Rows, false)
			return p
		}
	} else {
		s.grower.nodes(&p.Part, min(space.Rows, space.Wanted))
	}
	if space.Wanted == 0 {
		return schedule.Part{}
	}
	s.grower.complete(&p.Part, space.Rows, true)
	p.Want, p.TopK = max(p.Want, engine.WantTail), max(s.width(), s.d.cfg.Model.Block().Best)
	return p
}

// extend gives the part the next tokens that its session lacks. The tokens that hindsight is for get logits, which show what would
// have been guessed after them, as far as the pass has room for rows with logits: hindsight is not worth waiting for.
func (s *session) extend(part *engine.Part, tokens []tandem.Token, wanted int) {
	before := len(s.Tokens) - 1 - tandem.MaxHindsight - s.held()
	if s.d.cfg.Model.Block().Rows > 0 { // its rows of the text say nothing
	} else if before > 0 {
		tokens = tokens[:min(len(tokens), before)]
	} else if len(tokens) <= wanted && s.recall.Of(len(s.Tokens)).Tokens == 0 {
		part.Want = engine.WantAll
	}
	part.Extend = s.known(tokens)
}

// Take implements schedule.Session. Rows without a waiting job were run ahead.
func (s *session) Take(p schedule.Part, out *engine.Output, first int, pass schedule.Pass) {
	begun, cost := time.Now(), time.Duration(0)
	part, ahead := &p.Part, !s.Busy()
	switch {
	case ahead:
		cost = max(pass.Spent/time.Duration(pass.Rows), 1)
		s.ahead.take(len(part.Nodes), pass.Spent)
		s.d.cfg.Counters.Add("ahead.nodes", int64(len(part.Nodes)))
		s.d.cfg.Counters.Add("ahead.busy_ns", int64(cost)*int64(len(part.Nodes)))
	case !s.Opening() && !s.filling():
		s.job.busy += pass.Spent
		s.job.passes++
	}
	tail := first
	if n := len(part.Extend); part.Want == engine.WantAll {
		tail += n - 1
		for i, next := 0, s.held()-n+1; i < n && next+i < len(s.Tokens); i++ {
			var list []spec.Candidate
			if next+i < s.prompt { // the target did not draw it
				list = candidates(s.best(out, first+i, 1), 1)
			} else {
				list = s.guesses(out, first+i, 1, tandem.Position(next+i))
			}
			s.recall.Saw(next+i, len(list) > 0 && list[0].Token == s.Tokens[next+i])
		}
	}
	tree := !ahead && !s.Opening() && !s.filling() && s.Missing() == 0
	s.grower.take(result{part: p, out: out, tail: tail, first: first, tree: tree, cost: cost})
	switch {
	case tree:
		s.d.advance(s, begun)
	case s.filling() && !s.Opening() && s.Missing() == 0:
		s.d.sched.End(s, nil)
	}
}

// Opened implements schedule.Session.
func (s *session) Opened() { s.goal, s.hindsight = 0, s.recall.Of(len(s.Tokens)) }

// candidates turns the best tokens of a row into guesses.
func candidates(top engine.Top, width int) []spec.Candidate {
	norm := top.Max + float32(math.Log(float64(top.Sum)))
	list := make([]spec.Candidate, 0, width)
	for i, id := range top.IDs[:min(width, len(top.IDs))] {
		list = append(list, spec.Candidate{Token: tandem.Token(id), LogProb: top.Logits[i] - norm})
	}
	return list
}

package verifier

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Guesser makes the target's own guesses on what follows a row of a pass. An *engine.Model with side files is one. It is used only by
// the verifier's goroutine.
type Guesser interface {
	// SelfDrafts describes what it can do; the same from one call to the next.
	SelfDrafts() []tandem.SelfDraft
	// Guess answers asks in one run, with at most top candidates in a level. It only reads them.
	Guess(asks []engine.GuessAsk, top int) ([]tandem.Guess, error)
}

const (
	guessTop = worth.MedusaTop // candidates in a level, of
	leanTop  = tandem.MostCandidates
	// firstRows is how many rows of the prompt must have been computed for one prompt row of such guesses.
	firstRows = 1 << 5
)

// asking is a session whose answer waits for guesses.
type asking struct {
	s       *session
	c       *check         // its ticket; nil: it is being opened
	verdict tandem.Verdict // on the ticket, but for guesses
	asks    []engine.GuessAsk
	levels  []int // of asks: how many the rows cover; further ones are left out of the guess
}

// asked returns the target's self-drafts that are among names.
func (v *Verifier) asked(names []string) []tandem.SelfDraft {
	return slices.DeleteFunc(slices.Clone(v.selfDrafts), func(w tandem.SelfDraft) bool { return !slices.Contains(names, w.Name) })
}

// selfDraft returns the target's self-draft of that name.
func (v *Verifier) selfDraft(name string) (tandem.SelfDraft, bool) {
	i := slices.IndexFunc(v.selfDrafts, func(w tandem.SelfDraft) bool { return w.Name == name })
	if i < 0 {
		return tandem.SelfDraft{}, false
	}
	return v.selfDrafts[i], true
}

// ask prepares the guesses that follow a node of a tree, which is row at of part p. The hidden states are copied, because they are only
// valid until the next pass. Without prompt rows behind the node a self-draft that needs them guesses nothing.
func (a *asking) ask(w tandem.SelfDraft, t tandem.Tree, node int32, p schedule.Part, out *engine.Output) {
	root := len(p.Extend) - 1 // row of node 0
	hidden := func(node int32) []float32 { return slices.Clone(out.Hidden(p.At, root+int(node))) }
	if w.Members == 0 {
		ask := engine.GuessAsk{SelfDraft: w.Name, Hidden: [][]float32{hidden(node)}, Seq: p.Seq}
		if a.c != nil {
			ask.Path = slices.Clone(a.s.accepted)
		}
		if at := p.Seq.Len() + len(ask.Path); at < len(a.s.tokens) { // the last committed token, whose row is yet to come
			ask.Token = a.s.tokens[at]
			a.asks, a.levels = append(a.asks, ask), append(a.levels, w.Levels)
		}
		return
	}
	rows, levels := promptsBehind(t, node, w)
	if levels == 0 {
		return
	}
	ask := engine.GuessAsk{SelfDraft: w.Name}
	for e, row := range rows {
		if e%w.Levels >= levels { // a level without rows: any other does, since its guess is left out
			row = rows[e-e%w.Levels]
		}
		ask.Hidden = append(ask.Hidden, hidden(row))
	}
	a.asks, a.levels = append(a.asks, ask), append(a.levels, levels)
}

// promptsBehind returns the prompt nodes behind a node, by the number of their embedding, -1 for none, and how many levels have those of
// all members.
func promptsBehind(t tandem.Tree, node int32, w tandem.SelfDraft) (at []int32, levels int) {
	at = slices.Repeat([]int32{-1}, w.Members*w.Levels)
	for i := t.Guesses(); i < t.Len(); i++ {
		above := node
		e := int(t.Tokens[i])
		if e%w.Levels > 0 {
			above = at[e-1]
		}
		if above >= 0 && t.Parents[i] == above {
			at[e] = int32(i)
		}
	}
	for ; levels < w.Levels; levels++ {
		for m := range w.Members {
			if at[m*w.Levels+levels] < 0 {
				return at, levels
			}
		}
	}
	return at, levels
}

// promptRows returns the tokens and parents of the prompt rows behind the end of a prompt, for levels levels.
func promptRows(w tandem.SelfDraft, levels int) (tokens []tandem.Token, parents []int32) {
	for m := range w.Members {
		for l := range levels {
			parent := int32(len(tokens) - 1)
			if l == 0 {
				parent = -1
			}
			tokens, parents = append(tokens, tandem.Token(-1-(m*w.Levels+l))), append(parents, parent)
		}
	}
	return tokens, parents
}

// checkPrompts checks the prompt nodes of a valid tree: the embeddings are the self-draft's, each below a guess or the one before of its
// member.
func checkPrompts(t tandem.Tree, w tandem.SelfDraft) error {
	for i := t.Guesses(); i < t.Len(); i++ {
		e, p := int(t.Tokens[i]), int(t.Parents[i])
		switch first := e%w.Levels == 0; {
		case e >= w.Levels*w.Members:
			return tandem.Errorf("ticket", tandem.Invalid, "prompt node %d has embedding %d: want 0 to %d", i, e, w.Levels*w.Members-1)
		case first && p >= t.Guesses():
			return tandem.Errorf("ticket", tandem.Invalid,
				"prompt node %d has embedding %d, a first one, below prompt node %d: want it below a token", i, e, p)
		case !first && (p < t.Guesses() || int(t.Tokens[p]) != e-1):
			return tandem.Errorf("ticket", tandem.Invalid,
				"prompt node %d has embedding %d below node %d: want it below a prompt node with %d", i, e, p, e-1)
		}
	}
	return nil
}

// later reports whether a verdict waits for guesses, and then makes it wait. p is the session's part of the pass.
func (s *session) later(c *check, verdict tandem.Verdict, p schedule.Part, out *engine.Output) bool {
	selfDrafts := s.v.asked(c.ticket.SelfDrafts)
	if len(selfDrafts) == 0 {
		return false
	}
	node := int32(0)
	if n := len(s.accepted); n > 0 {
		node = s.accepted[n-1] + 1
	}
	a := &asking{s: s, c: c, verdict: verdict}
	for _, w := range selfDrafts {
		a.ask(w, c.tree, node, p, out)
	}
	if len(a.asks) == 0 {
		return false
	}
	s.v.asking = append(s.v.asking, a)
	return true
}

// first returns the self-drafts whose guesses Opened is to carry, if they add little to the time that the prompt has taken.
func (s *session) first() []tandem.SelfDraft {
	spent := time.Since(s.begun)
	return slices.DeleteFunc(s.v.asked(s.selfDrafts), func(w tandem.SelfDraft) bool {
		takes := s.v.guessTime(w.Name)
		return takes == 0 || float64(takes) > s.v.cfg.FirstShare*float64(spent)
	})
}

// guessTime returns what a guess of a self-draft takes; while that is not known, at most as long as the smallest pass. 0: unknown.
func (v *Verifier) guessTime(name string) time.Duration {
	if t := v.took[name]; t > 0 {
		return t
	}
	least := time.Duration(0)
	for _, c := range v.cfg.Costs {
		if least == 0 || c.Time < least {
			least = c.Time
		}
	}
	return least
}

// promptsAfter adds to the last piece of a prompt the prompt rows for the first guesses, if they fit and are few beside the prompt.
func (s *session) promptsAfter(p *schedule.Part, space schedule.Space) {
	w, ok := s.v.selfDraft(tandem.PPD)
	if !ok || !slices.ContainsFunc(s.first(), func(f tandem.SelfDraft) bool { return f.Name == w.Name }) {
		return
	}
	rows := min(space.Rows-len(p.Extend), s.maxNodes-1, (s.seq.Len()+len(p.Extend))/firstRows)
	levels := min(rows/w.Members, w.Levels, int(s.limit)-len(s.tokens))
	if levels > 0 {
		p.Nodes, p.Parents = promptRows(w, levels)
	}
}

// foretell prepares the guesses of a session whose prompt the pass has ended.
func (s *session) foretell(p schedule.Part, out *engine.Output) {
	if s.Missing() > 0 || len(p.Extend) == 0 {
		return
	}
	t := tandem.Tree{Tokens: []tandem.Token{p.Extend[len(p.Extend)-1]}, Parents: []int32{-1}, Prompts: len(p.Nodes)}
	for i, token := range p.Nodes {
		t.Tokens, t.Parents = append(t.Tokens, -1-token), append(t.Parents, p.Parents[i]+1)
	}
	a := &asking{s: s}
	for _, w := range s.first() {
		a.ask(w, t, 0, p, out)
	}
	if len(a.asks) > 0 {
		s.v.asking = append(s.v.asking, a)
	}
}

// guess makes the guesses that sessions of the pass have asked for, all in one run, and answers those sessions. The verdicts of the others
// have left. What fails costs the guesses, never a verdict.
func (v *Verifier) guess() {
	if len(v.asking) == 0 {
		return
	}
	// The sequence of a session that has left meanwhile is closed.
	all := slices.DeleteFunc(v.asking, func(a *asking) bool { return !v.sched.Holds(a.s) })
	if v.asking = nil; len(all) == 0 {
		return
	}
	var asks []engine.GuessAsk
	for _, a := range all {
		asks = append(asks, a.asks...)
	}
	begun := time.Now()
	var guesses []tandem.Guess
	err := owner.Guard(func() (err error) {
		guesses, err = v.cfg.Guesser.Guess(asks, leanTop)
		return err
	})
	took := time.Since(begun)
	v.cfg.Counters.Add("guesses.asked", int64(len(asks)))
	v.cfg.Counters.Add("guessing.busy_us", took.Microseconds())
	if err != nil || len(guesses) != len(asks) {
		v.cfg.Counters.Add("guesses.failed", int64(len(asks)))
		guesses = make([]tandem.Guess, len(asks))
	} else {
		v.learn(asks, took)
	}
	for _, a := range all {
		own := a.cut(guesses[:len(a.asks)])
		guesses = guesses[len(a.asks):]
		v.cfg.Counters.Add("guesses.made", int64(len(own)))
		switch {
		case !v.sched.Holds(a.s):
		case a.c == nil:
			a.s.guesses = own
		case a.s.ticket == a.c:
			a.verdict.Guesses, a.verdict.Guessing = own, took
			a.s.answer(a.c, a.verdict)
		}
	}
}

// learn notes what guesses take.
func (v *Verifier) learn(asks []engine.GuessAsk, took time.Duration) {
	for _, a := range asks {
		each := took / time.Duration(len(asks))
		if old := v.took[a.SelfDraft]; old > 0 {
			each = old + time.Duration(worth.CostGain*float64(each-old))
		}
		v.took[a.SelfDraft] = each
	}
}

// cut returns the guesses without what was not asked for: levels without rows, and those behind an empty one. Where the session draws,
// the candidates lean to what the noise of their positions favours, as drafts do.
func (a *asking) cut(guesses []tandem.Guess) (out []tandem.Guess) {
	for i, g := range guesses {
		g.Levels = g.Levels[:min(len(g.Levels), a.levels[i])]
		if n := slices.IndexFunc(g.Levels, func(l []tandem.TopLogprob) bool { return len(l) == 0 }); n >= 0 {
			g.Levels = g.Levels[:n]
		}
		for j, level := range g.Levels { // token j+1 behind the last committed one
			level = sample.Lean(level, a.s.sampling, tandem.Position(len(a.s.tokens)+j))
			g.Levels[j] = level[:min(len(level), guessTop)]
		}
		if len(g.Levels) > 0 {
			out = append(out, g)
		}
	}
	return out
}

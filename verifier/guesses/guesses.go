// Package guesses makes the target's own guesses on what follows a text, for the drafters and gateways that ask for them.
package guesses

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

// Maker makes the guesses that the sessions of a pass have asked for, all in one run, when the verdicts of the others have left. All of it
// belongs to the schedule's goroutine. It knows no session: Ask copies what it needs of the pass. Its exported fields are set before it is
// used, and not changed.
type Maker struct {
	Guesser    Guesser
	SelfDrafts []tandem.SelfDraft // Guesser's, with what was measured of them
	Costs      []tandem.Cost      // of the model's passes, as measured
	FirstShare float64            // share of a prompt's time that making guesses for Opened may add
	Counters   *tandem.Counters

	requests []*request               // of the latest pass
	took     map[string]time.Duration // running means of the time that a guess takes, by self-draft
}

// Request asks for guesses on what follows a node of a session's part of a pass.
type Request struct {
	SelfDrafts []tandem.SelfDraft // whose guesses
	Part       schedule.Part
	Out        *engine.Output // of the pass; only read, and only by Ask
	Tree       tandem.Tree    // node 0 is the last row of Part.Extend; the others are Part.Nodes
	Node       int32          // of Tree
	Path       []int32        // numbers in Part.Nodes of the accepted nodes, which lead to Node
	Text       []tandem.Token // committed, with what the pass has added
	Sampling   tandem.Sampling
	Held       func() bool // the session is still held
	// Answer is called once with the guesses, which may be none, and the time of the run; not if the session is no longer held.
	Answer func(guesses []tandem.Guess, took time.Duration)
}

// request is a Request with the asks that were made of it.
type request struct {
	Request
	asks   []engine.GuessAsk
	levels []int // of asks: how many the rows cover; further ones are left out of the guess
}

// Asked returns the target's self-drafts that are among names.
func (m *Maker) Asked(names []string) []tandem.SelfDraft {
	return slices.DeleteFunc(slices.Clone(m.SelfDrafts), func(w tandem.SelfDraft) bool { return !slices.Contains(names, w.Name) })
}

// First returns those among names whose guesses Opened is to carry: they add little to the time that the prompt has taken so far.
func (m *Maker) First(names []string, spent time.Duration) []tandem.SelfDraft {
	return slices.DeleteFunc(m.Asked(names), func(w tandem.SelfDraft) bool {
		takes := m.time(w.Name)
		return takes == 0 || float64(takes) > m.FirstShare*float64(spent)
	})
}

// time returns what a guess of a self-draft takes; while that is not known, at most as long as the smallest pass. 0: unknown.
func (m *Maker) time(name string) time.Duration {
	if t := m.took[name]; t > 0 {
		return t
	}
	least := time.Duration(0)
	for _, c := range m.Costs {
		if least == 0 || c.Time < least {
			least = c.Time
		}
	}
	return least
}

// prompted returns the target's self-draft that guesses behind prompt rows.
func (m *Maker) prompted() (tandem.SelfDraft, bool) {
	i := slices.IndexFunc(m.SelfDrafts, func(w tandem.SelfDraft) bool { return w.Name == tandem.PPD })
	if i < 0 {
		return tandem.SelfDraft{}, false
	}
	return m.SelfDrafts[i], true
}

// PromptRows returns the nodes to add behind the end of a prompt for the first guesses, and the parents of these nodes: none unless First
// has such a self-draft among names, and they are few beside the computed rows of the prompt. There are at most rows of them, which guess
// at most levels tokens ahead.
func (m *Maker) PromptRows(names []string, spent time.Duration, computed, rows, levels int) ([]tandem.Token, []int32) {
	w, ok := m.prompted()
	if !ok || !slices.ContainsFunc(m.First(names, spent), func(f tandem.SelfDraft) bool { return f.Name == w.Name }) {
		return nil, nil
	}
	rows = min(rows, computed/firstRows)
	return promptRows(w, min(rows/w.Members, w.Levels, levels))
}

// Prompts checks the prompt nodes of a valid tree, and returns it; without these nodes if no self-draft of the target has any: then its
// side file is gone since they were placed, and the guesses are as good as before. Errors: Invalid.
func (m *Maker) Prompts(t tandem.Tree) (tandem.Tree, error) {
	if w, ok := m.prompted(); ok {
		return t, checkPrompts(t, w)
	}
	if n := t.Guesses(); t.Prompts > 0 {
		m.Counters.Add("guesses.prompts_dropped", int64(t.Prompts))
		t = tandem.Tree{Tokens: t.Tokens[:n], Parents: t.Parents[:n]}
	}
	return t, nil
}

// Ask has Run make the guesses of q. It returns false, and Answer is never called, if no guess can be made: nobody is asked, or rows are
// missing.
func (m *Maker) Ask(q Request) bool {
	r := &request{Request: q}
	for _, w := range q.SelfDrafts {
		r.ask(w)
	}
	r.Out = nil // its values are only valid until the next pass
	if len(r.asks) > 0 {
		m.requests = append(m.requests, r)
	}
	return len(r.asks) > 0
}

// ask prepares the guess of a self-draft. The hidden states are copied, because they are only valid until the next pass. Without prompt
// rows behind the node a self-draft that needs them guesses nothing.
func (r *request) ask(w tandem.SelfDraft) {
	root := len(r.Part.Extend) - 1 // row of node 0
	hidden := func(node int32) []float32 { return slices.Clone(r.Out.Hidden(r.Part.At, root+int(node))) }
	if w.Members == 0 {
		ask := engine.GuessAsk{SelfDraft: w.Name, Hidden: [][]float32{hidden(r.Node)}, Seq: r.Part.Seq, Path: slices.Clone(r.Path)}
		if at := r.Part.Seq.Len() + len(ask.Path); at < len(r.Text) { // the last committed token, whose row is yet to come
			ask.Token = r.Text[at]
			r.asks, r.levels = append(r.asks, ask), append(r.levels, w.Levels)
		}
		return
	}
	rows, levels := promptsBehind(r.Tree, r.Node, w)
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
	r.asks, r.levels = append(r.asks, ask), append(r.levels, levels)
}

// Run makes the guesses that were asked for since it was last called, all in one run, and answers them. What fails costs the guesses, never
// an answer.
func (m *Maker) Run() {
	// The sequence of a session that has left meanwhile is closed.
	all := slices.DeleteFunc(m.requests, func(r *request) bool { return !r.Held() })
	if m.requests = nil; len(all) == 0 {
		return
	}
	var asks []engine.GuessAsk
	for _, r := range all {
		asks = append(asks, r.asks...)
	}
	begun := time.Now()
	var guesses []tandem.Guess
	err := owner.Guard(func() (err error) {
		guesses, err = m.Guesser.Guess(asks, leanTop)
		return err
	})
	took := time.Since(begun)
	m.Counters.Add("guesses.asked", int64(len(asks)))
	m.Counters.Add("guessing.busy_us", took.Microseconds())
	if err != nil || len(guesses) != len(asks) {
		m.Counters.Add("guesses.failed", int64(len(asks)))
		guesses = make([]tandem.Guess, len(asks))
	} else {
		m.learn(asks, took)
	}
	for _, r := range all {
		own := r.cut(guesses[:len(r.asks)])
		guesses = guesses[len(r.asks):]
		m.Counters.Add("guesses.made", int64(len(own)))
		if r.Held() {
			r.Answer(own, took)
		}
	}
}

// learn notes what guesses take.
func (m *Maker) learn(asks []engine.GuessAsk, took time.Duration) {
	if m.took == nil {
		m.took = map[string]time.Duration{}
	}
	for _, a := range asks {
		each := took / time.Duration(len(asks))
		if old := m.took[a.SelfDraft]; old > 0 {
			each = old + time.Duration(worth.CostGain*float64(each-old))
		}
		m.took[a.SelfDraft] = each
	}
}

// cut returns the guesses without what was not asked for: levels without rows, and those behind an empty one. Where the session draws,
// the candidates lean to what the noise of their positions favours, as drafts do.
func (r *request) cut(guesses []tandem.Guess) (out []tandem.Guess) {
	for i, g := range guesses {
		g.Levels = g.Levels[:min(len(g.Levels), r.levels[i])]
		if n := slices.IndexFunc(g.Levels, func(l []tandem.TopLogprob) bool { return len(l) == 0 }); n >= 0 {
			g.Levels = g.Levels[:n]
		}
		for j, level := range g.Levels { // token j+1 behind the last committed one
			level = sample.Lean(level, r.Sampling, tandem.Position(len(r.Text)+j))
			g.Levels[j] = level[:min(len(level), guessTop)]
		}
		if len(g.Levels) > 0 {
			out = append(out, g)
		}
	}
	return out
}

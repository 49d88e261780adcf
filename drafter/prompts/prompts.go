// Package prompts is the kind of draft that has prompt tokens of its own (PPD, PARD). By these one pass guesses several levels of a tree,
// so a tree needs fewer passes:
//
//  1. A pass has prompt rows behind the nodes where the tree is likely to go on. Their logits guess the candidates of the levels below.
//  2. The tree grows through these guesses as through candidates (spec.Sketch).
//  3. The next pass runs the likeliest nodes of the tree, several levels at once, with prompt rows behind them. A node counts as explored
//     only if the draft model has it among the candidates of its parent. Other rows, and all prompt rows, leave the cache after the pass.
//
// So explored nodes, and what is drafted ahead below them, are the same as without prompt tokens. The tree may have nodes that were never
// run. Their probability is how often such guesses were right (spec.Trust). The target verifies them like any others.
package prompts

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/drafter/tokens"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/shape"
)

const (
	promptRows  = 1 << 3 // nodes that a pass explores at most,
	promptSpots = 1      // and how many of them could get all prompt rows, if the others got none
)

// Is reports whether a model is of this kind: whether it was opened with prompt tokens.
func Is(m *engine.Model) bool { return wayOf(m).Levels > 0 }

// wayOf returns the self-draft of a model that was opened with prompt tokens; without Levels if it was not.
func wayOf(m *engine.Model) tandem.SelfDraft {
	all := m.SelfDrafts()
	if i := slices.IndexFunc(all, func(w tandem.SelfDraft) bool { return w.Name == tandem.PPD }); i >= 0 {
		return all[i]
	}
	return tandem.SelfDraft{}
}

// New returns the kind. The error is nil.
func New(d *grow.Draft) (grow.Kind, error) { return kind{wayOf(d.Config.Model)}, nil }

type kind struct{ way tandem.SelfDraft }

// Traits implements grow.Kind.
func (kind) Traits() grow.Traits {
	return grow.Traits{OwnTarget: "has prompt tokens (--draft-heads), which are for a target of its own vocabulary: want it without"}
}

// Parts implements grow.Kind.
func (k kind) Parts(s *grow.Session, _ int) grow.Parts {
	t := &prompted{s: s, way: k.way, tokens: tokens.NewPasses(s)}
	return grow.Parts{Adopter: tokens.NewAdopter(s), Trees: t, Passes: t, Ahead: tokens.NewAhead(s)}
}

// prompted is how the trees of a session grow, and what its passes have. It implements grow.Trees and grow.Passes.
type prompted struct {
	s        *grow.Session
	way      tandem.SelfDraft
	tokens   tokens.Passes // of rows that are not for a tree
	sketched *spec.Sketch  // the job's tree so far
	explore  int           // of sketched's open nodes that the next pass is to explore
	behind   []spot        // rows of the pass that is running
}

// Begin implements grow.Trees.
func (t *prompted) Begin() { t.sketched, t.explore = nil, 0 }

// Grow implements grow.Trees. It sketches the tree anew from all that is explored and foretold.
func (t *prompted) Grow(begun time.Time) (tandem.Tree, bool) {
	s, j := t.s, t.s.Job
	draw := func() {
		t.sketched = spec.NewSketch(&s.Explored, s.Text.Tokens[j.Proposal.Base-1], j.Proposal, s.Trust())
	}
	draw()
	if t.sketched.Root {
		return tandem.Tree{}, false
	}
	n := min(len(t.sketched.Open), promptRows)
	if over := s.Cache.Nodes() + n + t.way.Levels*t.way.Members - s.Limits.TreeRows; over > 0 {
		s.Retain(t.sketched.Used)
		draw()
		n = min(n, s.Limits.TreeRows-s.Cache.Nodes())
	}
	s.Use(t.sketched.Used)
	t.explore = t.sketched.Worth(s.Limits.Children, j.Proposal.Plan, j.Busy+time.Since(begun),
		s.Limits.Pace(n+promptSpots*t.way.Levels*t.way.Members), n)
	return t.sketched.Tree, t.explore == 0
}

// Nodes implements grow.Trees: those that are to be explored.
func (t *prompted) Nodes(part *engine.Part, n int) {
	old := part.Seq.Nodes()
	for _, r := range t.sketched.Open[:min(t.explore, n)] {
		parent := r.Parent - 1
		if r.Parent < 0 {
			parent = int32(old) - 1 - r.Parent
		}
		part.Nodes, part.Parents = append(part.Nodes, r.Token), append(part.Parents, parent)
	}
}

// Take implements grow.Passes.
func (t *prompted) Take(r grow.Result) {
	if r.Tree {
		t.foretell(r)
	} else {
		t.tokens.Take(r)
	}
}

// spot is a row of a part that has prompt rows behind it.
type spot struct {
	row    int // 0: the root, the last of Extend; else the index in Nodes, from 1
	first  int // index of its first prompt row in Nodes; members come one after the other
	levels int
}

// Complete implements grow.Passes: it adds prompt rows behind those rows where the tree will likely go on, as far as they fit into the
// pass.
func (t *prompted) Complete(part *engine.Part, rows int, tree bool) {
	if !tree {
		return
	}
	s, way, b := t.s, t.way, t.s.Job.Proposal.Bounds
	t.behind = t.behind[:0]
	fit := min(rows-len(part.Extend)-len(part.Nodes), s.Limits.TreeRows-s.Cache.Nodes()-len(part.Nodes), promptSpots*way.Levels*way.Members)
	if b.Plain() || fit < way.Members {
		return
	}
	old, n := s.Cache.Nodes(), len(part.Nodes)
	ends, depths := make([]float64, n+1), make([]int, n+1)
	if len(part.Extend) > 0 {
		ends[0] = 1
	}
	for i, r := range t.sketched.Open[:n] {
		p := math.Exp(float64(r.LogProb))
		ends[i+1], depths[i+1] = p, r.Depth
		if r.Parent < 0 {
			ends[-r.Parent] -= p
		}
	}
	for i := range ends {
		ends[i] = max(ends[i], 0)
	}
	counts := shape.Place(ends, s.Trust().Lengths(way.Levels), way, fit)
	shaped := tandem.Tree{Tokens: make([]tandem.Token, n+1), Parents: make([]int32, n+1)}
	at := n
	for i := range counts {
		if counts[i] = int8(max(min(int(counts[i]), b.Depth-depths[i]-1), 0)); counts[i] > 0 && ends[i] > 0 {
			t.behind = append(t.behind, spot{row: i, first: at, levels: int(counts[i])})
			at += int(counts[i]) * way.Members
		} else {
			counts[i] = 0
		}
	}
	shaped = shape.Prompt(shaped, counts, way)
	for i := n + 1; i < shaped.Len(); i++ {
		parent := shaped.Parents[i] - 1 // an index in Nodes, or the end of the prefix
		if parent >= 0 {
			parent += int32(old)
		}
		part.Nodes, part.Parents = append(part.Nodes, -1-shaped.Tokens[i]), append(part.Parents, parent)
	}
	s.Draft.Config.Counters.Add("prompts.rows", int64(shaped.Len()-n-1))
}

// foretell takes a pass that grows a tree: what it has explored, and what its prompt rows say. Rows that are no explored nodes leave the
// cache.
func (t *prompted) foretell(r grow.Result) {
	s := t.s
	part, width := &r.Part.Part, s.Width()
	if len(part.Extend) > 0 {
		s.Explored.Start(s.Vocab.Guesses(r.Out, r.Tail, width, tandem.Position(len(s.Text.Tokens))), width)
		t.learnChildren(-1, 0, 0)
	}
	old := s.Explored.Len() - 1 // tree rows before the pass
	nodes, kept := []int32{0}, make([]int32, old)
	for i := range kept {
		kept[i] = int32(i)
	}
	for i, token := range part.Nodes {
		if token < 0 {
			break // prompt rows come last
		}
		parent, node := part.Parents[i]+1, int32(-1)
		if int(parent) > old {
			parent = nodes[int(parent)-old]
		}
		if parent >= 0 && s.Explored.Has(parent, token) {
			at := tandem.Position(len(s.Text.Tokens) + s.Explored.Depth(parent) + 1)
			node = s.Explored.Add(parent, token, s.Vocab.Guesses(r.Out, r.First+i, width, at), 0)
			s.Trust().Learn(&s.Explored, node)
			t.learnChildren(parent, node, token)
			kept = append(kept, int32(old+i))
		}
		nodes = append(nodes, node)
	}
	t.takeGuesses(r, nodes, width)
	if err := s.Cache.Reroot(nil, kept); err != nil {
		panic(err)
	}
}

// learnChildren learns from the candidates of a node that has been explored; parent is -1 for the root.
func (t *prompted) learnChildren(parent, node int32, token tandem.Token) {
	s, p, r := t.s, t.s.Job.Proposal, spec.Row{}
	if parent >= 0 {
		siblings := spec.Temper(s.Explored.Candidates(parent), p.Temper)
		at := slices.IndexFunc(siblings, func(c spec.Candidate) bool { return c.Token == token })
		r = spec.Row{Depth: 1, Own: siblings[at].LogProb}
	}
	s.Limits.Children.Learn(r, spec.Temper(s.Explored.Candidates(node), p.Temper), p.Plan.Accept)
}

// takeGuesses asks the model what its prompt rows say. nodes are the explored nodes of the rows that they can stand behind, -1 for none.
// A failure costs guesses only.
func (t *prompted) takeGuesses(r grow.Result, nodes []int32, width int) {
	s, way := t.s, t.way
	var asks []engine.GuessAsk
	var list []spot
	for _, q := range t.behind {
		if nodes[q.row] < 0 {
			continue
		}
		ask := engine.GuessAsk{SelfDraft: way.Name}
		for e := range way.Members * way.Levels {
			row := q.first + e/way.Levels*q.levels + min(e%way.Levels, q.levels-1) // a level without rows is left out of the guess
			ask.Hidden = append(ask.Hidden, r.Out.Hidden(r.Part.At, len(r.Part.Extend)+row))
		}
		asks, list = append(asks, ask), append(list, q)
	}
	if len(asks) == 0 {
		return
	}
	guesses, err := s.Draft.Config.Model.Guess(asks, tandem.MostCandidates)
	if err != nil {
		s.Draft.Config.Counters.Add("prompts.failed", int64(len(asks)))
		return
	}
	for i, q := range list {
		node := nodes[q.row]
		var levels [][]spec.Candidate
		for k, level := range guesses[i].Levels[:q.levels] {
			at := tandem.Position(len(s.Text.Tokens) + s.Explored.Depth(node) + 1 + k)
			level = sample.Lean(level, s.Vocab.Sampling, at)
			var list []spec.Candidate
			for _, c := range level {
				if int(c.Token) < s.Vocab.Target && len(list) < width {
					list = append(list, spec.Candidate{Token: c.Token, LogProb: c.LogProb})
				}
			}
			levels = append(levels, list)
		}
		s.Explored.Foretell(node, levels)
	}
}

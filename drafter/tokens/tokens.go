// Package tokens is the kind of draft that reads tokens alone: any language model. Rows that have been explored are not run again.
package tokens

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/engine"
)

// New returns the kind.
func New() grow.Kind { return kind{} }

type kind struct{}

// Traits implements grow.Kind.
func (kind) Traits() grow.Traits { return grow.Traits{} }

// Parts implements grow.Kind.
func (kind) Parts(s *grow.Session, _ int) grow.Parts {
	return grow.Parts{Adopter: Adopter{s}, Trees: NewTrees(s, nil), Passes: Passes{s}, Ahead: Ahead{s}}
}

// Adopter keeps what was explored as far as the text follows it. It implements grow.Adopter.
type Adopter struct{ s *grow.Session }

// NewAdopter returns the adopter of s.
func NewAdopter(s *grow.Session) Adopter { return Adopter{s} }

// Adopt implements grow.Adopter. If the new tokens lead to an explored node, that becomes the root, and what was explored below it stays.
func (c Adopter) Adopt(p tandem.Proposal) error {
	s := c.s
	held := len(s.Text.Tokens)
	keep := s.Text.Follow(p)
	s.Recall.Keep(keep)
	tokens := s.Text.Tokens
	if keep == held && s.Explored.Len() > 0 {
		s.Explored.Hits(tokens[held:], func(i int, hit bool) { s.Recall.Saw(held+i, hit) })
	}
	fresh := int(p.Base) - 1 // the position of the root: it must be run for its logits unless they are known
	if s.Explored.Len() == 0 || keep < held {
		s.Explored.Clear()
		return s.Cache.Truncate(min(s.Cache.End(), keep, fresh))
	}
	path := s.Explored.Follow(tokens[held:])
	if len(path) == int(p.Base)-held && p.Bounds.Width <= s.Explored.Width() {
		root := int32(0)
		if len(path) > 0 {
			root = path[len(path)-1]
		}
		return s.Cache.Reroot(grow.RowsOf(path), grow.RowsOf(s.Explored.Reroot(root)))
	}
	s.Explored.Clear()
	if held > fresh {
		return s.Cache.Truncate(fresh)
	}
	return s.Cache.Commit(grow.RowsOf(path[:min(len(path), fresh-held)]))
}

// Trees grows trees through explored nodes. It implements grow.Trees.
type Trees struct {
	s      *grow.Session
	retain func(used []int32)
	tree   *grow.Growth // the job's
}

// NewTrees returns the trees of s. retain may be nil; else it is told before explored nodes are given up. Of those only the root and used,
// ascending, will stay (Session.Retain). It must not keep used.
func NewTrees(s *grow.Session, retain func(used []int32)) *Trees { return &Trees{s: s, retain: retain} }

// Begin implements grow.Trees.
func (t *Trees) Begin() {
	p := t.s.Job.Proposal
	t.tree = grow.NewGrowth(&t.s.Explored, &t.s.Limits, 0, t.s.Text.Tokens[p.Base-1], p)
}

// Grow implements grow.Trees. It answers the rows of the tree from the explored nodes until some must be run.
func (t *Trees) Grow(begun time.Time) (tandem.Tree, bool) {
	s := t.s
	for {
		run, more := t.tree.Next(s.Job.Busy + time.Since(begun))
		if !more {
			return t.tree.Tree(), true
		}
		if run > 0 {
			if s.Cache.Nodes()+run > s.Limits.TreeRows {
				used := t.tree.Used()
				if t.retain != nil {
					t.retain(used)
				}
				t.tree.Renumber(s.Retain(used))
			}
			return tandem.Tree{}, false
		}
		s.Use(t.tree.Pending())
		t.tree.Absorb(true)
	}
}

// Chain implements grow.Chains.
func (t *Trees) Chain() int { return t.tree.Chain(t.s.Job.Busy) }

// Nodes implements grow.Trees.
func (t *Trees) Nodes(part *engine.Part, n int) { t.tree.Missing(part, n) }

// Passes explores what a pass has run. It implements grow.Passes.
type Passes struct{ s *grow.Session }

// NewPasses returns the passes of s.
func NewPasses(s *grow.Session) Passes { return Passes{s} }

// Complete implements grow.Passes: there is nothing else to read.
func (Passes) Complete(*engine.Part, int, bool) {}

// Take implements grow.Passes.
func (t Passes) Take(r grow.Result) {
	s, part := t.s, &r.Part.Part
	if r.Tree && len(part.Extend) > 0 {
		width := s.Width()
		s.Explored.Start(s.Vocab.Guesses(r.Out, r.Tail, width, tandem.Position(len(s.Text.Tokens))), width)
	}
	for i, token := range part.Nodes {
		parent := part.Parents[i] + 1
		at := tandem.Position(len(s.Text.Tokens) + s.Explored.Depth(parent) + 1)
		s.Explored.Add(parent, token, s.Vocab.Guesses(r.Out, r.First+i, s.Width(), at), r.Cost)
	}
}

// Ahead lets a session draft ahead where a proposal asks for it. It implements grow.Ahead.
type Ahead struct{ s *grow.Session }

// NewAhead returns the decision for s.
func NewAhead(s *grow.Session) Ahead { return Ahead{s} }

// Goes implements grow.Ahead. Where a pass ahead must save a whole pass, none is run.
func (a Ahead) Goes(p tandem.Proposal) bool {
	return p.Ahead && a.s.Draft.Config.AheadGain < 1 && !p.Bounds.Plain()
}

// Renew implements grow.Ahead: what was computed holds.
func (Ahead) Renew(*engine.Part, int) bool { return false }

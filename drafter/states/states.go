// Package states is the kind of draft that reads the target's hidden states beside tokens (Dovetail; EAGLE; the MTP layers of a target).
//
// Trees grow as from tokens. Below the last committed token, where the target has not been yet, the state of a row is the draft's own
// output for the row of its parent. Rows of committed tokens are computed with the target's state as well. So after a verdict the next pass
// runs the accepted tokens anew, now with their features, and the new root. What was computed below the old root is not used again,
// unless the whole next tree was drafted ahead (ahead.go).
package states

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/drafter/tokens"
	"github.com/tandem-llm/tandem/engine"
)

// New returns the kind. Errors: those of NewFeeds.
func New(d *grow.Draft) (grow.Kind, error) {
	feeds, err := NewFeeds(d)
	_, own := d.Config.Model.StateWidth()
	return kind{feeds, own}, err
}

type kind struct {
	feeds *Feeds
	own   int // values of an output
}

// Traits implements grow.Kind.
func (k kind) Traits() grow.Traits { return k.feeds.Traits() }

// Parts implements grow.Kind.
func (k kind) Parts(s *grow.Session, found int) grow.Parts {
	feed, fill := k.feeds.Open(s, found)
	out := &outputs{width: k.own}
	a := &ahead{s: s, feed: feed, out: out}
	feed.ready = a.ready
	return grow.Parts{Adopter: &adopter{s: s, feed: feed, out: out, ahead: a}, Trees: tokens.NewTrees(s, out.keep),
		Passes: &passes{s: s, feed: feed, out: out, tokens: tokens.NewPasses(s)}, Opener: fill, Ahead: a}
}

// passes gives rows their states and explores what a pass has run. It implements grow.Passes.
type passes struct {
	s      *grow.Session
	feed   *Feed
	out    *outputs
	tokens tokens.Passes
}

// Complete implements grow.Passes: the states of the Extend rows, of which the first is the sequence's next, and of the Nodes.
func (t *passes) Complete(part *engine.Part, _ int, _ bool) {
	t.feed.Complete(part)
	for _, parent := range part.Parents {
		part.States = append(part.States, engine.State{Own: t.out.at(int(parent) + 1)})
	}
}

// Take implements grow.Passes. It keeps the draft's outputs at the nodes that the part has explored.
func (t *passes) Take(r grow.Result) {
	n, ahead := len(r.Part.Extend), r.Cost > 0
	t.feed.Ran(n)
	if ahead && n > 0 && t.s.Missing() == 0 {
		r.Tree = true // it begins anew
	}
	if r.Tree && n > 0 {
		t.out.begin(r.Out.Hidden(r.Part.At, n-1))
	}
	if r.Tree || ahead {
		for i := range r.Part.Nodes {
			t.out.add(r.Out.Hidden(r.Part.At, n+i))
		}
	}
	t.tokens.Take(r)
	if ahead && t.s.Explored.Len() > 0 {
		t.s.Explored.Resent(t.s.Job.Tree)
	}
}

// adopter runs accepted tokens anew, with their features, unless the next tree was drafted ahead. It implements grow.Adopter.
type adopter struct {
	s     *grow.Session
	feed  *Feed
	out   *outputs
	ahead *ahead
}

// Adopt implements grow.Adopter. The accepted tokens are run anew, with their features, and so is all that was explored.
func (c *adopter) Adopt(p tandem.Proposal) error {
	s, held := c.s, len(c.s.Text.Tokens)
	path, prepared := c.ahead.prepared(p)
	keep := s.Text.Follow(p)
	s.Recall.Keep(keep)
	tokens := s.Text.Tokens
	known := keep == held && s.Explored.Len() > 0
	if known {
		s.Explored.Hits(tokens[held:], func(i int, hit bool) { s.Recall.Saw(held+i, hit) })
	}
	if prepared {
		c.remember(held, path)
		return c.ahead.goOn(path)
	}
	if known && int(p.Base) == held && p.Bounds.Width <= s.Explored.Width() && !c.feed.Fresh() {
		kept := s.Explored.Reroot(0)
		c.out.keep(kept)
		return s.Cache.Reroot(nil, grow.RowsOf(kept))
	}
	if known {
		c.remember(held, s.Explored.Follow(tokens[held:]))
	}
	s.Explored.Clear()
	return c.feed.Truncate(max(min(s.Cache.Len(), keep-1, int(p.Base)-2, c.feed.Sure()), 0), keep < held)
}

// remember keeps the outputs at the root, which was the last of held tokens, and at the nodes of path below it.
func (c *adopter) remember(held int, path []int32) {
	c.feed.Instead(held-1, c.out.at(0))
	for i, node := range path {
		c.feed.Instead(held+i, c.out.at(int(node)))
	}
}

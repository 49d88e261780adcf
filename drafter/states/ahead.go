package states

import (
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/engine"
)

// ahead is what a session does while the target verifies. It implements grow.Ahead.
//
// It goes on below the tree that was sent as a draft of tokens does (grow.Lookahead), with its own outputs in place of the target's states.
// If the verdict leads to a tree that is complete, this is the next tree: it is sent at once, before the target's states have come. An
// incomplete tree is given up, since the target's states guess better and a pass is needed anyway.
//
// The rows of a tree that was sent so are second-best, and so would be all that is drafted below them. So when the target's states have
// come, all of it is computed anew, still while the target verifies: first the committed tokens (Renew), then what goes on ahead. In
// this way a tree is at most one verdict behind the target's states.
//
// It is not done where drafter and verifier share cores. Where they do not, the proposal says whether it pays (tandem.Proposal.Ahead): the
// gateway sees what rounds in both ways take and bring.
type ahead struct {
	s    *grow.Session
	feed *Feed
	out  *outputs
}

// Goes implements grow.Ahead. Where a pass ahead must save more than half a pass, as on shared cores, none is run.
func (a *ahead) Goes(p tandem.Proposal) bool {
	c := &a.s.Draft.Config
	goes := p.Ahead && 2*c.AheadGain <= 1 && !p.Bounds.Plain() && c.Features != nil
	a.feed.going.Store(goes)
	return goes
}

// prepared returns the explored nodes that the proposal's new tokens are. ready: the tree below the last of them was drafted ahead and
// is complete.
func (a *ahead) prepared(p tandem.Proposal) (path []int32, ready bool) {
	s := a.s
	tokens, held, from := s.Text.Tokens, len(s.Text.Tokens), int(p.From)
	if !s.Lookahead.Active() || s.Explored.Len() == 0 || int(p.Base) <= held || p.Bounds.Width > s.Explored.Width() ||
		!slices.Equal(tokens[from:], p.Suffix[:held-from]) {
		return nil, false
	}
	path = s.Explored.Follow(p.Suffix[held-from:])
	if len(path) < int(p.Base)-held {
		return nil, false
	}
	return path, s.Lookahead.Ready(path[len(path)-1], s.Room())
}

// ready reports whether the proposal's tree was drafted ahead and is complete.
func (a *ahead) ready(p tandem.Proposal) bool {
	_, ready := a.prepared(p)
	return ready
}

// goOn makes the last node of path, whose first is a child of the root, the root.
func (a *ahead) goOn(path []int32) error {
	root := path[len(path)-1]
	kept := a.s.Explored.Reroot(root)
	copy(a.out.at(0), a.out.at(int(root)))
	a.out.keep(kept)
	return a.s.Cache.Reroot(grow.RowsOf(path), grow.RowsOf(kept))
}

// Renew implements grow.Ahead. The rows that were computed with the draft's own outputs are replaced once the target's states of all tokens
// have come. Nothing is drafted below the old ones meanwhile, unless there will be no others.
func (a *ahead) Renew(part *engine.Part, rows int) (wait bool) {
	s, f := a.s, a.feed
	if s.Explored.Len() > 0 {
		if f.sure == s.Cache.Len() || f.none.Load() {
			return false
		}
		if f.end() < len(s.Text.Tokens)-1 || f.Truncate(f.sure, false) != nil {
			return true
		}
		s.Explored.Clear()
		s.Lookahead.Restart(min(s.Draft.Config.Ahead, s.Limits.TreeRows))
	}
	part.Extend = s.Vocab.Known(s.Text.Tokens[s.Held():][:min(s.Missing(), rows)])
	f.Complete(part)
	return true
}

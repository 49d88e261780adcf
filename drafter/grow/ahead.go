package grow

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	aheadRows  = 1 << 4 // of a pass: few, so that a job does not wait for long
	aheadShare = 1 << 3 // one session's part of them: the results decide what is worth running next
)

// Lookahead is what a session does between an answer and the next proposal: it prepares for the outcomes of
// verifying the tree that was sent. LLMCad's speculative generation does so for the likeliest outcome alone.
//
// An outcome is a next root, with a probability by the draft model (spec.Explored.Likely). When its row has been
// run, the candidates after it are known, which saves the next tree its first pass. Then the tree that the same
// proposal would have below that root is grown, pass by pass. Rows are run in the order of their worth, which is the
// probability of their outcome divided by the number of rows that it takes to save one pass.
type Lookahead struct {
	explored *spec.Explored
	limits   *Limits
	proposal tandem.Proposal   // the last one answered
	trees    map[int32]*Growth // by explored node; nil: nothing is drafted ahead. A tree that is done is nil
	left     int               // nodes that may still be run
	ran      int
	busy     time.Duration
}

// begin drafts ahead of the verdict on the tree that answered p, at most left nodes.
func (a *Lookahead) begin(p tandem.Proposal, left int) {
	a.proposal = p
	a.Restart(left)
}

// Restart gives up all that has been drafted ahead and begins anew, with at most left nodes.
func (a *Lookahead) Restart(left int) { a.trees, a.left = map[int32]*Growth{}, left }

// Active reports whether the session drafts ahead.
func (a *Lookahead) Active() bool { return a.trees != nil }

// note notes a pass.
func (a *Lookahead) note(nodes int, spent time.Duration) {
	a.left, a.ran, a.busy = a.left-nodes, a.ran+nodes, a.busy+spent
}

// end ends drafting ahead and returns how many nodes it ran, and how long that took.
func (a *Lookahead) end() (ran int, busy time.Duration) {
	ran, busy = a.ran, a.busy
	*a = Lookahead{explored: a.explored, limits: a.limits}
	return ran, busy
}

// Ready reports whether the tree below an explored node was drafted ahead and is complete. room is Session.Room.
func (a *Lookahead) Ready(node int32, room int) bool {
	if _, begun := a.trees[node]; !begun {
		return false
	}
	_, run := a.tree(node, room)
	return run == 0
}

// prepare adds at most n rows to a part, the worthiest first. gain is how many passes they are expected to save. room is Session.Room.
func (a *Lookahead) prepare(part *engine.Part, n, room int) (gain float64) {
	type work struct {
		worth float64
		row   spec.Row
		tree  *Growth // or row
	}
	var list []work
	// the last position of a session is no root of a tree
	for _, r := range a.explored.Likely(n, room-1, worth.LeastChance) {
		list = append(list, work{worth: math.Exp(float64(r.LogProb)), row: r})
	}
	nodes, logProbs := a.explored.Outcomes(worth.LeastChance)
	for i, node := range nodes {
		if g, run := a.tree(node, room); run > 0 {
			list = append(list, work{worth: math.Exp(float64(logProbs[i])) / float64(run), tree: g})
		}
	}
	slices.SortStableFunc(list, func(a, b work) int { return cmp.Compare(b.worth, a.worth) })
	for _, w := range list {
		before := len(part.Nodes)
		if before >= n {
			break
		}
		if w.tree != nil {
			w.tree.Missing(part, n)
		} else {
			part.Nodes, part.Parents = append(part.Nodes, w.row.Token), append(part.Parents, w.row.Parent)
		}
		gain += w.worth * float64(len(part.Nodes)-before)
	}
	return gain
}

// tree returns the tree that grows below an outcome, and how many rows must be run before it can go on; nil and 0 if it is done.
func (a *Lookahead) tree(node int32, room int) (g *Growth, run int) {
	g, begun := a.trees[node]
	if !begun {
		p := a.proposal
		p.Bounds.Depth = min(p.Bounds.Depth, room-a.explored.Depth(node))
		g = NewGrowth(a.explored, a.limits, node, 0, p)
		a.trees[node] = g
	}
	for g != nil {
		run, more := g.Next(0)
		switch {
		case !more:
			g, a.trees[node] = nil, nil
		case run > 0:
			return g, run
		default:
			g.Absorb(false) // learned once the tree is wanted
		}
	}
	return nil, 0
}

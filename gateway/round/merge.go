package round

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec"
)

// Origin is whose tree a round verifies.
type Origin uint8

const (
	Nothing  Origin = iota // the root alone: nothing was drafted, or the verifier has refused what was
	InPool                 // of one source, which has put the ticket with it
	Returned               // of one source, which has returned it
	Several                // merged, of several sources
)

// Drafted is what came of a round's drafts.
type Drafted struct {
	Origin Origin
	Tree   tandem.Tree   // as far as it was returned
	By     string        // who drafted Tree, "vote" for several
	Voted  int           // index in Drafts of the majority's; 0 with one
	Size   int           // nodes that were drafted, as the source says; 0: nothing was
	Depth  int           // likewise
	Busy   time.Duration // arithmetic of drafting within the round
}

func (r *Round) drafted() bool { return r.Origin != Nothing }

// join makes one tree of the drafts.
func (r *Round) join(took time.Duration) {
	switch {
	case len(r.Drafts) == 0:
	case r.Vote != tandem.VoteNone:
		r.merge(took)
	default:
		d := &r.Drafts[0]
		r.Drafted = Drafted{Tree: d.Got.Tree, By: d.Drafter, Size: d.Got.Nodes, Depth: d.Got.Depth, Busy: d.Busy}
		switch {
		case r.InPool:
			r.Origin = InPool
		case r.Tree.Len() > 1:
			r.Origin = Returned
		}
	}
}

// merge makes one tree of several drafts.
func (r *Round) merge(took time.Duration) {
	order := func(d Draft) int {
		return slices.IndexFunc(r.Asks, func(k strategy.Ask) bool { return k.Drafter == d.Drafter })
	}
	slices.SortFunc(r.Drafts, func(x, y Draft) int { return order(x) - order(y) })
	var ballots []spec.Ballot
	var trees []spec.DrafterTree
	var of []int // which draft a ballot is
	for i, d := range r.Drafts {
		r.Busy = max(r.Busy, d.Busy) // they ran at the same time
		if d.Got.Tree.Len() > 1 {
			ballots, of = append(ballots, spec.Ballot{Tree: d.Got.Tree, Weight: r.Weights.Of(d.Drafter)}), append(of, i)
			trees = append(trees, spec.DrafterTree{Drafter: d.Drafter, Tree: d.Got.Tree})
		}
	}
	if len(ballots) == 0 {
		return
	}
	nodes := min(r.Nodes, r.rules.Nodes-r.Reserve)
	if r.Vote == tandem.VoteTree {
		if r.Mix != nil {
			r.Tree = r.Mix.Merge(trees, nodes)
		} else {
			r.Tree, _ = spec.Merge(ballots, nodes)
		}
		if r.Cut.Verify != nil {
			r.Tree, _ = spec.Cut(r.Tree, r.Cut, took)
		}
		r.By = "vote"
	} else {
		var voted int
		r.Tree, voted = spec.Majority(ballots)
		r.Voted = of[voted]
		r.By = r.Drafts[r.Voted].Drafter
	}
	if r.Tree.Len() == 1 {
		return
	}
	r.Origin = Several
	_, r.Depth = r.Tree.Depths()
	r.Size = r.Tree.Len()
}

// Patience returns how long a round waits for several sources that answer at the same time, by the usual times of those that take any:
//
//	2 · the longest of them
//
// The strategy has weighed the round with the longest, so that source is worth waiting for; waiting in vain costs at most as much again. 0:
// each source's own deadline decides, because the usual time of one is not known.
func Patience(usual []time.Duration) time.Duration {
	if len(usual) == 0 || slices.Contains(usual, 0) {
		return 0
	}
	return 2 * slices.Max(usual)
}

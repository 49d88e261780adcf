package round

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec"
)

// Origin says where the tree comes from that a round verifies.
type Origin uint8

const (
	Nothing  Origin = iota // the root alone: nothing was drafted, or the verifier has refused what was
	InPool                 // of one source, which has put the ticket with it
	Returned               // of one source, which has returned it
	Several                // merged of several sources, or voted for among them
)

// Drafted is what the drafts of a round have become.
type Drafted struct {
	Origin Origin
	Tree   tandem.Tree   // empty if it was not returned
	By     string        // the source that drafted Tree; "vote" if it is merged
	Voted  int           // index in Drafts of the one that the majority voted for; else 0
	Size   int           // nodes of the tree, root included, as the source says; 0: nothing was drafted
	Depth  int           // levels below the root, as the source says
	Busy   time.Duration // arithmetic of drafting within the round
}

func (d *Drafted) drafted() bool { return d.Origin != Nothing }

// join makes one tree of the drafts, of at most so many nodes, and sorts them in the order of Asks.
func (p *Plan) join(drafts []Draft, nodes int, took time.Duration) (out Drafted) {
	switch {
	case len(drafts) == 0:
	case p.Vote != tandem.VoteNone:
		return p.merge(drafts, min(p.Nodes, nodes), took)
	default:
		d := &drafts[0]
		out = Drafted{Tree: d.Got.Tree, By: d.Drafter, Size: d.Got.Nodes, Depth: d.Got.Depth, Busy: d.Busy}
		switch {
		case p.InPool:
			out.Origin = InPool
		case out.Tree.Len() > 1:
			out.Origin = Returned
		}
	}
	return out
}

// merge makes one tree of several drafts.
func (p *Plan) merge(drafts []Draft, nodes int, took time.Duration) (out Drafted) {
	order := func(d Draft) int {
		return slices.IndexFunc(p.Asks, func(k strategy.Ask) bool { return k.Drafter == d.Drafter })
	}
	slices.SortFunc(drafts, func(x, y Draft) int { return order(x) - order(y) })
	var ballots []spec.Ballot
	var trees []spec.DrafterTree
	var of []int // which draft a ballot is
	for i, d := range drafts {
		out.Busy = max(out.Busy, d.Busy) // they ran at the same time
		if d.Got.Tree.Len() > 1 {
			ballots, of = append(ballots, spec.Ballot{Tree: d.Got.Tree, Weight: p.Weights.Of(d.Drafter)}), append(of, i)
			trees = append(trees, spec.DrafterTree{Drafter: d.Drafter, Tree: d.Got.Tree})
		}
	}
	if len(ballots) == 0 {
		return out
	}
	if p.Vote == tandem.VoteTree {
		if p.Mix != nil {
			out.Tree = p.Mix.Merge(trees, nodes)
		} else {
			out.Tree, _ = spec.Merge(ballots, nodes)
		}
		if p.Cut.Verify != nil {
			out.Tree, _ = spec.Cut(out.Tree, p.Cut, took)
		}
		out.By = "vote"
	} else {
		var voted int
		out.Tree, voted = spec.Majority(ballots)
		out.Voted = of[voted]
		out.By = drafts[out.Voted].Drafter
	}
	if out.Tree.Len() == 1 {
		return out
	}
	out.Origin, out.Size = Several, out.Tree.Len()
	_, out.Depth = out.Tree.Depths()
	return out
}

// Patience returns how long a round waits for several sources that draft at the same time. usual has the usual time of each source that
// needs time to answer:
//
//	2 · the longest of them
//
// The strategy has weighed the round with the longest, so that source is worth waiting for; waiting in vain costs at most as much again. If
// the usual time of one is not known (0), the result is 0: each source's own deadline decides.
func Patience(usual []time.Duration) time.Duration {
	if len(usual) == 0 || slices.Contains(usual, 0) {
		return 0
	}
	return 2 * slices.Max(usual)
}

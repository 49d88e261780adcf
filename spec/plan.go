package spec

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Cut keeps the nodes of t that maximise the expected tokens per second of the round. With w nodes, root included, 1 ≤ w ≤ len(p.Verify):
//
//	(p.Others + 1 + Σ chance) / (draft + p.Round + p.Verify[w-1])
//
// It returns the smaller tree, a copy, and the kept nodes' indices in t, ascending. draft is the time that drafting has taken. The chance
// of a node is its parent's, times p.Accept of the AcceptBin of its probability after the parent; without Accept, times that probability.
// A node is never likelier than its parent, so the best w nodes are the w likeliest: O(n log n). Prompt nodes are left out. A plan without
// Verify keeps all other nodes.
func Cut(t tandem.Tree, p tandem.Plan, draft time.Duration) (cut tandem.Tree, kept []int32) {
	t = t.Bare()
	n := t.Len()
	kept = make([]int32, n)
	for i := range kept {
		kept[i] = int32(i)
	}
	if len(p.Verify) > 0 && n > 0 {
		reach := newChances(p.Accept).along(t)
		slices.SortFunc(kept[1:], func(a, b int32) int { // parents first: likelier, or equally likely with a lower index
			return cmp.Or(cmp.Compare(reach[b], reach[a]), cmp.Compare(a, b))
		})
		chances := make([]float64, 0, n-1)
		for _, i := range kept[1:] {
			chances = append(chances, reach[i])
		}
		w, _ := best(chances, p, draft)
		kept = kept[:w]
		slices.Sort(kept)
	}
	place := make([]int32, n)
	cut.Tokens, cut.Parents = make([]tandem.Token, len(kept)), make([]int32, len(kept))
	if t.LogProbs != nil {
		cut.LogProbs = make([]float32, len(kept))
	}
	for i, at := range kept {
		place[at] = int32(i)
		cut.Tokens[i], cut.Parents[i] = t.Tokens[at], -1
		if at > 0 {
			cut.Parents[i] = place[t.Parents[at]]
		}
		if t.LogProbs != nil {
			cut.LogProbs[i] = t.LogProbs[at]
		}
	}
	return cut, kept
}

// best returns the number of nodes, root included, with the highest rate, and that rate, as worth.Best does. chances are those of the nodes
// below the root, likeliest first.
func best(chances []float64, p tandem.Plan, draft time.Duration) (w int, rate float64) {
	if len(p.Verify) == 0 {
		return 0, 0
	}
	n, rate := worth.Best(1+max(p.Others, 0), chances[:min(len(chances), len(p.Verify)-1)], func(n int) time.Duration {
		return max(draft, 0) + max(p.Round, 0) + max(p.Verify[n], 0)
	})
	return n + 1, rate
}

// Kept returns the chances of the nodes of a tree, root excluded, that Cut keeps, likeliest first.
func Kept(t tandem.Tree, p tandem.Plan) []float64 {
	if t.Len() < 2 {
		return nil
	}
	reach := newChances(p.Accept).along(t.Bare())[1:]
	slices.SortFunc(reach, func(a, b float64) int { return cmp.Compare(b, a) })
	w, _ := best(reach, p, 0)
	return reach[:max(w-1, 0)]
}

// chances is an Accept table in which no bin is likelier than one before it.
type chances []float32

func newChances(accept []float32) chances {
	if len(accept) == 0 {
		return nil
	}
	c := make(chances, len(accept))
	least := float32(1)
	for i, v := range accept {
		if v = max(v, 0); v < least { // a comparison with NaN is false: the bin gets the value before it
			least = v
		}
		c[i] = least
	}
	return c
}

// of returns the chance of a node whose parent is accepted, by its log-probability after that.
func (c chances) of(own float32) float64 {
	switch {
	case own != own:
		return 0
	case c == nil:
		return chance(own)
	}
	return float64(c[min(tandem.AcceptBin(own), len(c)-1)])
}

// along returns the chance of each node of t, without prompt nodes: the product along its path.
func (c chances) along(t tandem.Tree) []float64 {
	out := make([]float64, t.Len())
	out[0] = 1
	for i := 1; i < len(out); i++ {
		out[i] = out[t.Parents[i]] * c.of(own(t, int32(i)))
	}
	return out
}

// own returns the log-probability of a node after its parent: 0 if t has none.
func own(t tandem.Tree, node int32) float32 {
	if t.LogProbs == nil {
		return 0
	}
	return t.LogProbs[node] - t.LogProbs[t.Parents[node]]
}

package spec

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

// Cut keeps the likeliest nodes of t, as many as maximise expected tokens per time,
//
//	(p.Others + 1 + Σ chance) / (draft + p.Round + p.Verify[w-1]),  1 ≤ w ≤ len(p.Verify) nodes, root included.
//
// It returns the smaller tree, a copy, and the kept nodes' indices in t, ascending. draft is the time that drafting
// has taken: spent, but part of the round. The chance of a node is p.Accept by the AcceptBin of its LogProb, or
// exp(LogProb) if there is no Accept; a node is never likelier than its parent. So a node is kept only with its parent,
// and only the n prefixes of one order need comparing: O(n log n). A plan without Verify keeps all but prompt nodes, which are placed
// behind what is left.
func Cut(t tandem.Tree, p tandem.Plan, draft time.Duration) (cut tandem.Tree, kept []int32) {
	t = t.Bare()
	n := t.Len()
	kept = make([]int32, n)
	for i := range kept {
		kept[i] = int32(i)
	}
	if len(p.Verify) > 0 && n > 0 {
		logProbs := monotone(t)
		slices.SortFunc(kept[1:], func(a, b int32) int { // parents first: likelier, or equally likely with a lower index
			return cmp.Or(cmp.Compare(logProbs[b], logProbs[a]), cmp.Compare(a, b))
		})
		table := newChances(p.Accept)
		chances := make([]float64, 0, n-1)
		for _, i := range kept[1:] {
			chances = append(chances, table.of(logProbs[i]))
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

// best returns the number of nodes, root included, with the highest rate, and that rate in tokens per second; among
// equals the fewest nodes. chances are those of the nodes below the root, likeliest first.
func best(chances []float64, p tandem.Plan, draft time.Duration) (w int, rate float64) {
	tokens := 1.0
	if p.Others > 0 {
		tokens += p.Others
	}
	for i := range min(len(chances)+1, len(p.Verify)) {
		if i > 0 {
			tokens += chances[i-1]
		}
		round := max(draft, 0) + max(p.Round, 0) + max(p.Verify[i], 0)
		if r := tokens / max(round, 1).Seconds(); r > rate {
			w, rate = i+1, r
		}
	}
	return w, rate
}

// monotone returns the nodes' log-probabilities, none above its parent's or 0, and none NaN.
func monotone(t tandem.Tree) []float32 {
	out := make([]float32, t.Len())
	for i := 1; i < len(out) && t.LogProbs != nil; i++ {
		lp := t.LogProbs[i]
		if lp != lp {
			lp = float32(math.Inf(-1))
		}
		out[i] = min(lp, out[t.Parents[i]])
	}
	return out
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

func (c chances) of(logProb float32) float64 {
	if c == nil {
		return chance(logProb)
	}
	return float64(c[min(tandem.AcceptBin(logProb), len(c)-1)])
}

package shape

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/tandem-llm/tandem"
)

// place is a node that may be added to a shape.
type place struct {
	chance      float64
	parent      int32
	depth       int32 // of the parent: the level of the candidate
	above, rank int16
}

// before orders places: chance down, depth up, parent up, rank up.
func (p place) before(q place) bool {
	return cmp.Or(cmp.Compare(q.chance, p.chance), cmp.Compare(p.depth, q.depth), cmp.Compare(p.parent, q.parent),
		cmp.Compare(p.rank, q.rank)) < 0
}

// Greedy returns the shape with at most that many nodes, root included, levels and candidates in a level, that has the greatest
// expected acceptance length: it adds the likeliest node, again and again (Ghidorah, section III-C1). No shape is better by these rates,
// because no node is likelier than its parent. Nodes of chance 0 are left out. Nodes are in the order in which they were added.
func Greedy(rate Rate, nodes, levels, ranks int) Shape {
	levels, ranks = min(levels, tandem.MostLevels), min(ranks, tandem.MostCandidates)
	s := root()
	open := queue[place]{before: place.before}
	grow := func(node int32, p place) {
		for j := range ranks {
			if chance := p.chance * min(rate(int(p.depth), int(p.above), j), 1); chance > 0 {
				open.push(place{chance, node, p.depth, p.above, int16(j)})
			}
		}
	}
	if levels > 0 {
		grow(0, place{chance: 1})
	}
	for s.Len() < nodes && len(open.heap) > 0 {
		p := open.pop()
		node := int32(s.Len())
		s.Parents, s.Ranks = append(s.Parents, p.parent), append(s.Ranks, int8(p.rank))
		if p.depth++; int(p.depth) < levels {
			p.above += p.rank
			grow(node, p)
		}
	}
	return s
}

// Adaptive returns the likeliest tree of at most that many nodes, root included, of g's candidates. Unlike Shape.Tree its shape
// follows this guess. LogProbs are the logarithms of the nodes' chances.
func Adaptive(root tandem.Token, g tandem.Guess, rate Rate, nodes int) tandem.Tree {
	ranks := 0
	for _, level := range g.Levels {
		ranks = max(ranks, len(level))
	}
	inside := func(level, above, rank int) float64 {
		if rank >= len(g.Levels[level]) {
			return 0
		}
		return rate(level, above, rank)
	}
	return Greedy(inside, nodes, len(g.Levels), ranks).Tree(root, g, inside)
}

// Full returns the Cartesian product of the first branches[k] candidates of each level k, cut to that many nodes, root included, the
// higher levels first. It knows no accuracies: it is there to compare with.
func Full(branches []int, nodes int) Shape {
	s := root()
	first := 0 // of the level above
	for k := range min(len(branches), tandem.MostLevels) {
		end := s.Len()
		for p := first; p < end; p++ {
			for j := range min(branches[k], tandem.MostCandidates) {
				if s.Len() >= nodes {
					return s
				}
				s.Parents, s.Ranks = append(s.Parents, int32(p)), append(s.Ranks, int8(j))
			}
		}
		first = end
	}
	return s
}

// Random returns a shape that grew by adding any of the possible nodes, all equally likely. It is there to compare with.
func Random(seed uint64, nodes, levels, ranks int) Shape {
	levels, ranks = min(levels, tandem.MostLevels), min(ranks, tandem.MostCandidates)
	draw := rand.New(rand.NewPCG(seed, 0x5a))
	s := root()
	var open []place
	grow := func(node int32, depth int32) {
		for j := range ranks {
			open = append(open, place{parent: node, depth: depth, rank: int16(j)})
		}
	}
	if levels > 0 {
		grow(0, 0)
	}
	for s.Len() < nodes && len(open) > 0 {
		i := draw.IntN(len(open))
		p := open[i]
		open = slices.Delete(open, i, i+1)
		s.Parents, s.Ranks = append(s.Parents, p.parent), append(s.Ranks, int8(p.rank))
		if int(p.depth)+1 < levels {
			grow(int32(s.Len()-1), p.depth+1)
		}
	}
	return s
}

// queue is a binary heap, the first by before on top.
type queue[T any] struct {
	heap   []T
	before func(a, b T) bool
}

func (q *queue[T]) push(v T) {
	h := append(q.heap, v)
	i := len(h) - 1
	for ; i > 0 && q.before(v, h[(i-1)/2]); i = (i - 1) / 2 {
		h[i] = h[(i-1)/2]
	}
	h[i] = v
	q.heap = h
}

func (q *queue[T]) pop() T {
	h := q.heap
	top, v := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		kid := 2*i + 1
		if kid+1 < len(h) && q.before(h[kid+1], h[kid]) {
			kid++
		}
		if kid >= len(h) || !q.before(h[kid], v) {
			h[i] = v
			break
		}
		h[i] = h[kid]
		i = kid
	}
	q.heap = h
	return top
}

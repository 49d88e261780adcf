// Package shape decides which trees to make of what the target itself guesses (tandem.Guess), and where the tree asks for the next
// guesses (prompt nodes). A guess says for each distance which tokens are likely, without knowing the tokens between: a path takes one
// candidate of each level, and its chance comes from a table of how often candidates were right (Accuracy) or from the guess's own
// probabilities. Like package spec it has no I/O, goroutine or clock. Equal arguments give equal results.
//
// Sources: trees by accuracy, greedy, then local search: Ghidorah, section III-C. Trees with prompt tokens and their states: PPD,
// section 5.6.
package shape

import (
	"math"

	"github.com/tandem-llm/tandem"
)

// Shape is a tree of ranks: node i holds candidate Ranks[i] of level depth(i) − 1. Node 0 is the root. Parents come before
// children, and no two children of a node have the same rank. A shape is made once; each round fills it with the tokens of a guess.
type Shape struct {
	Parents []int32 `json:"parents"` // Parents[0] = −1
	Ranks   []int8  `json:"ranks"`   // Ranks[0] = 0, without meaning
}

// Rate is the chance that the candidate of that rank in that level (both from 0) is right, if all candidates above it in its path are
// right; above is the sum of their ranks. It is in [0, 1], and over all ranks it adds up to at most 1. A candidate that is not there
// has rate 0.
type Rate func(level, above, rank int) float64

// root returns the shape of a root alone.
func root() Shape { return Shape{Parents: []int32{-1}, Ranks: []int8{0}} }

// Len returns the number of nodes, root included.
func (s Shape) Len() int { return len(s.Parents) }

// Head returns the first n nodes; they share s's memory. Of a shape by Greedy they are Greedy's shape of n nodes.
func (s Shape) Head(n int) Shape {
	n = max(min(n, s.Len()), 1)
	return Shape{s.Parents[:n:n], s.Ranks[:n:n]}
}

// Depths returns each node's distance from the root and the largest of them.
func (s Shape) Depths() ([]int, int) {
	depths, deepest := make([]int, s.Len()), 0
	for i := 1; i < len(depths); i++ {
		depths[i] = depths[s.Parents[i]] + 1
		deepest = max(deepest, depths[i])
	}
	return depths, deepest
}

// Chances returns the chance that each node's whole path is right: 1 at the root, elsewhere the product of its path's rates.
func (s Shape) Chances(rate Rate) []float64 {
	chances, above, depths := make([]float64, s.Len()), make([]int, s.Len()), make([]int, s.Len())
	chances[0] = 1
	for i := 1; i < s.Len(); i++ {
		p, r := s.Parents[i], int(s.Ranks[i])
		chances[i] = chances[p] * rate(depths[p], above[p], r)
		depths[i], above[i] = depths[p]+1, above[p]+r
	}
	return chances
}

// Length returns the expected acceptance length: the tokens that a pass over s decides, the target's own included. It is the sum of the
// chances of all nodes (PPD, Proposition 5.6.1), the root counting for the target's own token.
func (s Shape) Length(rate Rate) float64 { return sum(s.Chances(rate)) }

func sum(list []float64) (total float64) {
	for _, v := range list {
		total += v
	}
	return total
}

// leastChance is the least that a node's chance counts as in a tree's LogProbs.
const leastChance = 1e-9

// Tree fills s with the candidates of g, below root. Nodes whose candidate g does not have are left out, with all below them. LogProbs
// are the logarithms of Chances(rate).
func (s Shape) Tree(root tandem.Token, g tandem.Guess, rate Rate) tandem.Tree {
	t, _ := s.fill(root, g, rate)
	return t
}

// fill is Tree; at holds the place in s of each node of t.
func (s Shape) fill(root tandem.Token, g tandem.Guess, rate Rate) (t tandem.Tree, at []int32) {
	t = tandem.Tree{Tokens: make([]tandem.Token, 1, s.Len()), Parents: make([]int32, 1, s.Len()), LogProbs: make([]float32, 1, s.Len())}
	t.Tokens[0], t.Parents[0] = root, -1
	at = make([]int32, 1, s.Len())
	chances := s.Chances(rate)
	place, depths := make([]int32, s.Len()), make([]int, s.Len())
	for i := 1; i < s.Len(); i++ {
		p, r := s.Parents[i], int(s.Ranks[i])
		place[i] = -1
		depths[i] = depths[p] + 1
		if place[p] < 0 || depths[p] >= len(g.Levels) || r >= len(g.Levels[depths[p]]) {
			continue
		}
		place[i] = int32(t.Len())
		t.Tokens, t.Parents = append(t.Tokens, g.Levels[depths[p]][r].Token), append(t.Parents, place[p])
		t.LogProbs = append(t.LogProbs, float32(math.Log(max(chances[i], leastChance))))
		at = append(at, int32(i))
	}
	return t, at
}

package spec

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	maxRank        = 3   // children of a node that are expected of a draft pass
	childPrior     = 4   // nodes that the expectation of all sessions counts for in one of them, and the first guess in all
	childMemory    = 64  // nodes that a cell of a session remembers, about
	childMemoryAll = 256 // the same of all sessions
)

// firstChildren is what is expected of a node's best children until something was seen: every second guess is right.
var firstChildren = [maxRank]float64{0.5, 0.1, 0.05}

// Children learns what a draft pass will bring before it has run: the chances of a node's best children once the node is accepted, by the
// chance of the node itself after its parent. A draft model that was sure of a token is often sure of the next. Not safe for concurrent
// use.
type Children struct {
	all   *Children // what all sessions have seen; nil: this is it
	cells []childCell
}

type childCell struct {
	seen float64
	mean [maxRank]float64
}

// NewChildren returns what a new session expects: the same as all. nil: it is for all sessions.
func NewChildren(all *Children) *Children {
	return &Children{all: all, cells: make([]childCell, tandem.AcceptBins())}
}

// Learn takes the candidates that a pass has found after a node. own is the log-probability of the node after its parent, accept the
// plan's.
func (c *Children) Learn(own float32, list []Candidate, accept []float32) {
	var found [maxRank]float64
	table := newChances(accept)
	for i, child := range list[:min(len(list), maxRank)] {
		found[i] = table.of(child.LogProb)
	}
	for memory := childMemory; c != nil; c, memory = c.all, childMemoryAll {
		cell := &c.cells[tandem.AcceptBin(own)]
		cell.seen = min(cell.seen+1, float64(memory))
		for i, v := range found {
			cell.mean[i] += (v - cell.mean[i]) / cell.seen
		}
	}
}

// expect returns the expected chances of a node's best children, if the node is accepted.
func (c *Children) expect(own float32) (out [maxRank]float64) {
	out = firstChildren
	if c.all != nil {
		out = c.all.expect(own)
	}
	cell := c.cells[tandem.AcceptBin(own)]
	for i, v := range cell.mean {
		out[i] += (v - out[i]) * cell.seen / (cell.seen + childPrior)
	}
	return out
}

// Rows returns how many of the n pending rows of a tree the next draft pass should have, likeliest first: as many as raise the best rate
// of Cut most, given the children that are to be expected of them. 0: no pass is worth its time. pass(k) is the time of a pass with the
// first k of them. Without a plan all are worth it.
func (c *Children) Rows(d Draft, p tandem.Plan, drafted time.Duration, pass func(rows int) time.Duration, n int) (rows int) {
	if len(p.Verify) == 0 {
		return n
	}
	table := newChances(p.Accept)
	logProbs := monotone(d.Tree)
	chances := make([]float64, 0, d.Tree.Len()+maxRank*n)
	leaves := make([]int, 0, n) // the pending rows' nodes: those with the latest row numbers
	for i, lp := range logProbs[1:] {
		chances = append(chances, table.of(lp))
		if d.Rows[i+1] >= 0 {
			leaves = append(leaves, i+1)
		}
	}
	slices.SortFunc(leaves, func(a, b int) int { return cmp.Compare(d.Rows[a], d.Rows[b]) })
	leaves = leaves[max(len(leaves)-n, 0):]
	slices.SortFunc(chances, func(a, b float64) int { return cmp.Compare(b, a) })
	_, most := best(chances, p, drafted)
	for k, leaf := range leaves {
		own := logProbs[leaf] - logProbs[d.Tree.Parents[leaf]]
		reach := table.of(logProbs[leaf])
		for _, share := range c.expect(own) {
			chances = insert(chances, reach*share)
		}
		if _, rate := best(chances, p, drafted+pass(k+1)); rate > most {
			rows, most = k+1, rate
		}
	}
	return rows
}

// insert adds a chance to a list that is sorted, likeliest first.
func insert(list []float64, v float64) []float64 {
	at, _ := slices.BinarySearchFunc(list, v, func(a, b float64) int { return cmp.Compare(b, a) })
	return slices.Insert(list, at, v)
}

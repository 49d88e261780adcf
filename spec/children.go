package spec

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	maxRank        = 1 + 2             // children of a node that are expected of a draft pass
	childMemoryAll = worth.Memory << 2 // nodes that a cell of all sessions remembers, about
)

// firstChildren is what is expected of a node's best children until something was seen: every second guess is right, and the others have
// their shares of the rest.
var firstChildren = [maxRank]float64{1. / 2, worth.OtherShare / 2, worth.OtherShare / 2 / 2}

// Children predicts what a draft pass will bring: the chances that a node's best children are accepted if the node is. It learns them by
// the node's own chance after its parent, because a draft model that was sure of a token is often sure of the next. Not safe for
// concurrent use.
type Children struct {
	all   *Children // what all sessions have seen; nil: this is it
	any   childCell // of all nodes, roots included
	cells []childCell
}

type childCell struct {
	seen float64
	mean [maxRank]float64
}

// NewChildren returns the predictions of a new session. They begin with those of all, and Learn then teaches both. all nil: the result is
// the one that all sessions share.
func NewChildren(all *Children) *Children {
	return &Children{all: all, cells: make([]childCell, tandem.AcceptBins())}
}

// Learn takes the candidates that a pass has found after row r of a grower. accept is Plan.Accept. Call it for the root too: every tree
// begins with its candidates, so something is learned even where no further pass seems to pay.
func (c *Children) Learn(r Row, list []Candidate, accept []float32) {
	var found [maxRank]float64
	table := newChances(accept)
	for i, child := range list[:min(len(list), maxRank)] {
		found[i] = table.of(child.LogProb)
	}
	for memory := worth.Memory; c != nil; c, memory = c.all, childMemoryAll {
		c.any.add(found, memory)
		if r.Depth > 0 {
			c.cells[tandem.AcceptBin(r.Own)].add(found, memory)
		}
	}
}

func (c *childCell) add(found [maxRank]float64, memory int) {
	c.seen = min(c.seen+1, float64(memory))
	for i, v := range found {
		c.mean[i] += (v - c.mean[i]) / c.seen
	}
}

// expect returns the expected chances of the best children of a node that has that log-probability after its parent, if it is accepted.
func (c *Children) expect(own float32) [maxRank]float64 {
	bin := tandem.AcceptBin(own)
	out := firstChildren
	if c.all != nil {
		out = c.all.cells[bin].shift(c.all.any.shift(out))
	}
	return c.cells[bin].shift(c.any.shift(out))
}

// shift moves an expectation to what was seen.
func (c *childCell) shift(out [maxRank]float64) [maxRank]float64 {
	for i, v := range c.mean {
		out[i] += (v - out[i]) * c.seen / (c.seen + worth.Prior)
	}
	return out
}

// Rows returns how many of the n pending rows of a tree, likeliest first, the next draft pass should run. It adds the children that it
// expects of those rows, and takes the number of rows with which Cut's best rate rises most. 0: no pass is worth its time. pass(k) is the
// time of a pass with the first k rows. Without a plan it returns n.
func (c *Children) Rows(d Draft, p tandem.Plan, drafted time.Duration, pass func(rows int) time.Duration, n int) (rows int) {
	if len(p.Verify) == 0 {
		return n
	}
	reach := newChances(p.Accept).along(d.Tree)
	chances := append(make([]float64, 0, len(reach)+maxRank*n), reach[1:]...)
	leaves := make([]int32, 0, n) // the pending rows' nodes: those with the latest row numbers
	for i, row := range d.Rows {
		if row >= 0 {
			leaves = append(leaves, int32(i))
		}
	}
	slices.SortFunc(leaves, func(a, b int32) int { return cmp.Compare(d.Rows[a], d.Rows[b]) })
	leaves = leaves[max(len(leaves)-n, 0):]
	slices.SortFunc(chances, func(a, b float64) int { return cmp.Compare(b, a) })
	_, most := best(chances, p, drafted)
	for k, leaf := range leaves {
		for _, share := range c.expect(own(d.Tree, leaf)) {
			chances = insert(chances, reach[leaf]*share)
		}
		if _, rate := best(chances, p, drafted+pass(k+1)); rate > most {
			rows, most = k+1, rate
		}
	}
	return rows
}

// Chain returns how many rows, at most most, a chain behind row r should have if all are run at once, each in the time of a pass: as many
// as give Cut's best rate, if every row has the chance that the best child of r is expected to have, and those before r are about as likely
// as r. Without a plan it returns most.
func (c *Children) Chain(r Row, p tandem.Plan, drafted, pass time.Duration, most int) (rows int) {
	if len(p.Verify) == 0 || most < 1 {
		return max(most, 0)
	}
	reach, highest := 1.0, 0.0
	if r.Depth > 0 {
		reach = r.Chance
	}
	chances := slices.Repeat([]float64{reach}, r.Depth)
	share := c.expect(r.Own)[0]
	for k := range most + 1 {
		reach *= share
		chances = append(chances, reach)
		if _, rate := best(chances, p, drafted+time.Duration(k+1)*pass); rate > highest {
			rows, highest = k, rate
		}
	}
	return rows
}

// insert adds a chance to a list that is sorted, likeliest first.
func insert(list []float64, v float64) []float64 {
	at, _ := slices.BinarySearchFunc(list, v, func(a, b float64) int { return cmp.Compare(b, a) })
	return slices.Insert(list, at, v)
}

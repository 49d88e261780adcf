package spec

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Successors is the adjacency table of token recycling (Luo et al., 2024): which tokens the target found likeliest, the last time, after a
// token, and after a pair of tokens. The target tells it of every node that it verifies, also of rejected ones, so a tree from it costs no
// arithmetic of a model. The paper keeps single tokens; a pair says more where it was seen before. Not safe for concurrent use.
//
// It is a hash table of rows of four entries. It doubles when a row is full, up to MostSuccessorBytes; then a new entry takes the place of
// the oldest of its row.
type Successors struct {
	entries []successors // a multiple of fourWays
	clock   uint32
}

// successors are the likeliest tokens after a context.
type successors struct {
	context uint64 // see contextOf; 0: the entry is free
	next    [tandem.MostSuccessors]tandem.Token
	used    uint32 // when it was last written
	n       uint8  // of next
	steady  uint8  // how often in a row the likeliest stayed the same, at most mostSteady
}

const (
	// MostSuccessorBytes bounds the memory of a table: 32,768 entries of 48 bytes.
	MostSuccessorBytes = 2 << 20

	fourWays       = 1 << 2
	firstEntries   = 1 << 8
	mostEntries    = 1 << 15
	successorBytes = 1<<5 | 1<<4
	mostSteady     = 1<<2 - 1
)

// contextOf returns the key of a token, or of a pair if before is not negative.
func contextOf(before, token tandem.Token) uint64 {
	return (uint64(uint32(before))+1)<<32 | uint64(uint32(token)) + 1
}

// unpaired stands before a token whose successors are looked up without the one before it.
const unpaired = tandem.Token(-1)

// NewSuccessors returns an empty table.
func NewSuccessors() *Successors { return &Successors{entries: make([]successors, firstEntries)} }

// Bytes returns how much memory the entries take.
func (x *Successors) Bytes() int { return len(x.entries) * successorBytes }

// row returns the entries where a context may lie.
func (x *Successors) row(context uint64) []successors {
	h := context * 0x9e3779b97f4a7c15
	h ^= h >> 29
	h = h * 0xd6e8feb86659fd93 >> 32
	at := int(h%uint64(len(x.entries)/fourWays)) * fourWays
	return x.entries[at : at+fourWays]
}

// find returns the entry of a context, nil if there is none.
func (x *Successors) find(context uint64) *successors {
	row := x.row(context)
	for i := range row {
		if row[i].context == context {
			return &row[i]
		}
	}
	return nil
}

// Learn remembers which tokens are likeliest, best first, after token and after the pair (before, token), in place of what was remembered.
// before is -1 if token is the first of its text. The list is copied.
func (x *Successors) Learn(before, token tandem.Token, likeliest []tandem.Token) {
	if likeliest = likeliest[:min(len(likeliest), tandem.MostSuccessors)]; len(likeliest) == 0 {
		return
	}
	x.put(contextOf(unpaired, token), likeliest)
	if before >= 0 {
		x.put(contextOf(before, token), likeliest)
	}
}

func (x *Successors) put(context uint64, likeliest []tandem.Token) {
	e := x.find(context)
	if e == nil {
		e = x.place(context)
	}
	if e.n > 0 && e.next[0] == likeliest[0] {
		e.steady = min(e.steady+1, mostSteady)
	} else {
		e.steady = 0
	}
	x.clock++
	e.used, e.n = x.clock, uint8(copy(e.next[:], likeliest))
}

// place returns an empty entry for a context that has none.
func (x *Successors) place(context uint64) *successors {
	for {
		row, at := x.row(context), 0
		for i := range row {
			if row[i].context == 0 {
				at = i
				break
			}
			if x.clock-row[i].used > x.clock-row[at].used {
				at = i
			}
		}
		if row[at].context == 0 || len(x.entries) == mostEntries {
			row[at] = successors{context: context}
			return &row[at]
		}
		x.grow()
	}
}

// grow doubles the table.
func (x *Successors) grow() {
	old := x.entries
	x.entries = make([]successors, 2*len(old))
	for _, e := range old {
		if e.context != 0 {
			*x.place(e.context) = e
		}
	}
}

// after returns the likeliest tokens after a token, by the pair if that is known; nil if nothing is. kind says how much they are worth: see
// RankChances.
func (x *Successors) after(before, token tandem.Token) (likeliest []tandem.Token, kind int) {
	if e := x.find(contextOf(before, token)); e != nil && before >= 0 {
		return e.next[:e.n], mostSteady + 1 + int(e.steady)
	}
	if e := x.find(contextOf(unpaired, token)); e != nil {
		return e.next[:e.n], int(e.steady)
	}
	return nil, 0
}

// First returns the best guess after the pair (before, token), or after token if the pair is not known; false: nothing is known.
func (x *Successors) First(before, token tandem.Token) (tandem.Token, bool) {
	likeliest, _ := x.after(before, token)
	if len(likeliest) == 0 {
		return 0, false
	}
	return likeliest[0], true
}

// Tree returns a tree below root, the last token of a text, within b, likeliest nodes first; before is the token before root. A node's
// probability is the product of the chances along its path. Nodes of less probability than least are left out.
func (x *Successors) Tree(before, root tandem.Token, chances *RankChances, b tandem.Bounds, least float64) tandem.Tree {
	t := tandem.Root(root)
	t.LogProbs = []float32{0}
	if b.Plain() {
		return t
	}
	var open []recycled // ascending by probability
	floor := float32(math.Log(max(least, worth.LeastChance)))
	grow := func(node int32, before tandem.Token, depth int) {
		list, kind := x.after(before, t.Tokens[node])
		for rank, next := range list[:min(len(list), b.Width)] {
			g := recycled{node, next, depth, t.LogProbs[node] + chances.log(depth, kind, rank)}
			if g.logProb < floor {
				continue
			}
			at, _ := slices.BinarySearchFunc(open, g, func(o, g recycled) int {
				if o.logProb < g.logProb {
					return -1
				}
				return 1
			})
			open = slices.Insert(open, at, g)
		}
	}
	for grow(0, before, 1); len(open) > 0 && t.Len() < b.Nodes; {
		g := open[len(open)-1]
		open = open[:len(open)-1]
		node := int32(t.Len())
		t.Tokens, t.Parents, t.LogProbs = append(t.Tokens, g.token), append(t.Parents, g.parent), append(t.LogProbs, g.logProb)
		if g.depth < b.Depth {
			grow(node, t.Tokens[g.parent], g.depth+1)
		}
	}
	return t
}

// recycled is a possible next node of a tree.
type recycled struct {
	parent  int32
	token   tandem.Token
	depth   int
	logProb float32
}

// RankChances learns how often a recycled guess is right if its parent is. It counts by the guess's depth, its rank in the list, and the
// kind of the list: whether it stood behind a token or a pair, and in how many rounds in a row its likeliest token has stayed the same.
// Counts fade. There is one of a model: what one text teaches counts for all. Not safe for concurrent use.
type RankChances struct {
	cells [rankDepths][rankKinds][tandem.MostSuccessors]rankCell
}

type rankCell struct{ seen, held float32 }

const (
	rankDepths = 1 << 2 // deeper nodes count as of the last
	rankKinds  = 2 * (mostSteady + 1)
	rankMemory = worth.Memory << 2 // nodes that a cell remembers, about
)

// usualChance returns the chance of a guess of a list of that kind of which nothing was counted. With s rounds in which the likeliest token
// has stayed the same it is (1+s)/(5+s) for that token, (2+s)/(5+s) in a list behind a pair, and the others share the rest as 1/5, 1/10, …
func usualChance(kind, rank int) float32 {
	pair, steady := kind/(mostSteady+1), kind%(mostSteady+1)
	p := float32(1+pair+steady) / (1/worth.OtherShare + float32(steady))
	if rank > 0 {
		p = (1 - p) * worth.OtherShare / float32(rank)
	}
	return p
}

// chance returns the chance of a guess at a depth, 1 below the root, if its parent is right.
func (c *RankChances) chance(depth, kind, rank int) float32 {
	p := usualChance(kind, rank)
	for d := range min(depth, rankDepths) {
		cell := c.cells[d][kind][rank]
		p = (cell.held + worth.Prior*p) / (cell.seen + worth.Prior)
	}
	return p
}

func (c *RankChances) log(depth, kind, rank int) float32 {
	return float32(math.Log(float64(c.chance(depth, kind, rank))))
}

// Learn compares what the table would have guessed with the tokens that the target has chosen after root, and reports for each whether it
// was the first guess. It is called before the table learns from the same verdict.
func (c *RankChances) Learn(x *Successors, before, root tandem.Token, chosen []tandem.Token) (hits []bool) {
	path := true
	for i, t := range chosen {
		list, kind := x.after(before, root)
		rank := slices.Index(list, t)
		if hits = append(hits, rank == 0); path {
			c.count(min(i, rankDepths-1), kind, len(list), rank)
			path = rank >= 0
		}
		before, root = root, t
	}
	return hits
}

// count notes at which rank of a list the target's choice stood, -1: at none.
func (c *RankChances) count(depth, kind, n, rank int) {
	for r := range n {
		cell := &c.cells[depth][kind][r]
		cell.seen, cell.held = cell.seen*(1-1./rankMemory)+1, cell.held*(1-1./rankMemory)
		if r == rank {
			cell.held++
		}
	}
}

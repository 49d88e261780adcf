// Package spec is speculation as pure functions and small state: how a tree of guesses grows, and which
// guesses the target accepts. It has no I/O, goroutine or clock.
package spec

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// decay is the logarithm of SpecExec's factor per step of depth.
var decay = float32(math.Log(worth.SpecExecDecay))

// Row is a node to run through the draft model.
type Row struct {
	Token   tandem.Token
	Parent  int32   // row of the node's parent, -1 for a child of the root
	Depth   int     // distance from the root
	LogProb float32 // cumulative, in nats; 0 for the root
	Own     float32 // of the node after its parent, in nats; every Grower sets it
	Chance  float64 // that the whole path is accepted, by Plan.Accept; only a Builder sets it
}

// Candidate is a guess for the token after a node.
type Candidate struct {
	Token   tandem.Token
	LogProb float32 // of the token after that node, in nats, at most 0
}

// Grower grows one token tree; plain decoding and chains are trees of width 0 and 1.
//
// The caller alternates Pending and Absorb until Pending returns nothing or the caller wants no more. The first pending row is the root,
// the committed token whose successors are guessed; it has no row number. Every other pending row gets the next row number, from 0.
type Grower interface {
	// Pending returns the rows to run in the next draft pass, at most room (the root needs none). If there are none the tree is done.
	Pending(room int) []Row
	// Shorten takes back all but the first n rows that the last Pending returned, n > 0, and their row numbers. A later Pending may return
	// them again, unless growth goes on to the next level. Call it before Absorb.
	Shorten(n int)
	// Absorb takes the candidates after each pending row, in Pending's order, likeliest first. It ignores a
	// row's candidates beyond the bounds' width, and those of probability NaN or 0.
	Absorb(candidates [][]Candidate)
	// Draft returns the tree as it is. It may be called at any time; the result is the caller's.
	Draft() Draft
}

// NewGrower returns a grower of one tree below root, within p.Bounds. p.Growth chooses its kind; p.Branch and p.Stop are its thresholds.
func NewGrower(root tandem.Token, p tandem.Proposal) Grower {
	if p.Growth == tandem.GrowPacer {
		return NewPacer(root, p.Bounds, p.Branch, p.Stop)
	}
	return &Builder{root: root, bounds: p.Bounds, first: p.Growth == tandem.GrowBest, stop: logOf(p.Stop),
		accept: newChances(p.Plan.Accept)}
}

// logOf returns the log-probability of a chance, -Inf for none.
func logOf(chance float64) float32 { return float32(math.Log(max(chance, 0))) }

// Builder is the Grower that runs the likeliest nodes.
//
// Two orders of growth share the type. Levels (EAGLE-2 section 4.1, as used by Dovetail) runs the Width
// likeliest nodes of the newest level, Depth levels in all. Best-first (SpecExec) runs the Width best
// nodes of any depth, by log-probability with a decay per step. Both keep, of all nodes guessed, the
// best bounds.Nodes-1 below the root. If the plan says what the draft's probabilities are worth, its chances count in their place.
//
// Invariants:
//  1. nodes holds the best bounds.Nodes-1 guesses so far, best first: score down, depth up, id up.
//  2. The parent of a node in nodes is the root or comes before it in nodes: a child's score is at most
//     its parent's, and the deeper of two equals comes later. A child of probability 1 would otherwise
//     push its own parent out.
//  3. A guess that is not in nodes can never come back, nor can its descendants; so they are not
//     stored. The same holds for children of a node in the last of the places, which is therefore never run. Trees are
//     the same as if every level had been run in full.
type Builder struct {
	root   tandem.Token
	bounds tandem.Bounds
	first  bool    // best-first
	stop   float32 // log-probability: growth ends once every node left to run has less
	accept chances // nil: no plan

	nodes   []node
	issued  int32   // ids given out; the root is 0
	rows    int32   // row numbers given out
	level   int     // the newest level's depth
	pending []int32 // ids that the last Pending returned
	started bool
}

type node struct {
	id, parent int32
	row        int32 // -1 if not run
	depth      int
	token      tandem.Token
	score      float32 // what nodes are ordered by
	logProb    float32 // cumulative
	own        float32 // log-probability after its parent
	chance     float64 // cumulative, by the plan
}

// Pending implements Grower.
func (b *Builder) Pending(room int) []Row {
	b.pending = b.pending[:0]
	if !b.started {
		b.started = true
		if b.bounds.Plain() {
			return nil
		}
		b.pending = append(b.pending, 0)
		return []Row{{Token: b.root, Parent: -1}}
	}
	if !b.hopeful() {
		return nil
	}
	var rows []Row
	for i := range b.nodes {
		n := &b.nodes[i]
		if len(rows) >= min(b.bounds.Width, room) {
			break
		}
		if !b.runnable(i) {
			continue
		}
		n.row = b.rows
		b.rows++
		b.pending = append(b.pending, n.id)
		parent := int32(-1)
		if n.parent != 0 {
			parent = b.nodes[b.find(n.parent)].row
		}
		rows = append(rows, Row{Token: n.token, Parent: parent, Depth: n.depth, LogProb: n.logProb, Own: n.own,
			Chance: n.chance})
	}
	return rows
}

// Shorten implements Grower.
func (b *Builder) Shorten(n int) {
	for _, id := range b.pending[n:] {
		b.nodes[b.find(id)].row = -1
		b.rows--
	}
	b.pending = b.pending[:n]
}

// hopeful reports whether a node that could be run is likely enough to go on: as in LLMCad's fallback, the likeliest decides.
func (b *Builder) hopeful() bool {
	for i := range b.nodes {
		if b.nodes[i].logProb >= b.stop && b.runnable(i) {
			return true
		}
	}
	return false
}

// runnable reports whether the node in place i has not been run and its children could be kept.
func (b *Builder) runnable(i int) bool {
	n := b.nodes[i]
	return n.row < 0 && n.depth < b.bounds.Depth && i < b.bounds.Nodes-2 && (b.first || n.depth == b.level)
}

// Absorb implements Grower.
func (b *Builder) Absorb(candidates [][]Candidate) {
	if len(candidates) != len(b.pending) {
		panic(fmt.Sprintf("spec: %d candidate lists for %d pending rows", len(candidates), len(b.pending)))
	}
	for i, list := range candidates {
		parent := node{chance: 1}
		if id := b.pending[i]; id != 0 {
			at := b.find(id)
			if at < 0 {
				continue // children of other rows pushed it out
			}
			parent = b.nodes[at]
		}
		b.guess(parent, list[:min(len(list), b.bounds.Width)])
	}
	b.pending = b.pending[:0]
	b.level++
}

func (b *Builder) guess(parent node, list []Candidate) {
	for _, c := range list {
		b.issued++
		lp := min(c.LogProb, 0)
		if !(lp > float32(math.Inf(-1))) {
			continue
		}
		n := node{id: b.issued, parent: parent.id, row: -1, depth: parent.depth + 1, token: c.Token,
			score: parent.score + b.worth(lp), logProb: parent.logProb + lp, own: lp, chance: parent.chance * b.accept.of(lp)}
		if b.first {
			n.score += decay
		}
		at, _ := slices.BinarySearchFunc(b.nodes, n, better)
		if at < b.bounds.Nodes-1 {
			b.nodes = slices.Insert(b.nodes[:min(len(b.nodes), b.bounds.Nodes-2)], at, n)
		}
	}
}

// worth returns what a node's log-probability after its parent adds to its score.
func (b *Builder) worth(own float32) float32 {
	if b.accept == nil {
		return own
	}
	return logOf(b.accept.of(own))
}

// better orders nodes: score down, depth up, id up.
func better(a, b node) int {
	return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.depth, b.depth), cmp.Compare(a.id, b.id))
}

// find returns the place of the node with that id, -1 if it is not kept.
func (b *Builder) find(id int32) int {
	return slices.IndexFunc(b.nodes, func(n node) bool { return n.id == id })
}

// Draft is a tree as it was grown. Rows[i] is the row number that Pending gave node i, or -1 if it gave none, as for the root. If a node
// has a row, its parent has one too or is the root.
type Draft struct {
	Tree tandem.Tree
	Rows []int32
}

// Draft implements Grower.
func (b *Builder) Draft() Draft {
	kept := slices.Clone(b.nodes)
	slices.SortFunc(kept, func(x, y node) int { return cmp.Compare(x.id, y.id) }) // parents before children
	return draftOf(b.root, kept)
}

// draftOf returns the tree of kept below root, whose id is 0; parents come before children.
func draftOf(root tandem.Token, kept []node) Draft {
	n := len(kept) + 1
	d := Draft{Rows: make([]int32, 1, n), Tree: tandem.Tree{Tokens: make([]tandem.Token, 1, n),
		Parents: make([]int32, 1, n), LogProbs: make([]float32, 1, n)}}
	d.Rows[0], d.Tree.Tokens[0], d.Tree.Parents[0] = -1, root, -1
	place := map[int32]int32{0: 0}
	for i, k := range kept {
		parent, ok := place[k.parent]
		if !ok {
			panic(fmt.Sprintf("spec: node %d is kept but its parent %d is not", k.id, k.parent))
		}
		place[k.id] = int32(i + 1)
		d.Rows = append(d.Rows, k.row)
		d.Tree.Tokens = append(d.Tree.Tokens, k.token)
		d.Tree.Parents = append(d.Tree.Parents, parent)
		d.Tree.LogProbs = append(d.Tree.LogProbs, k.logProb)
	}
	return d
}

// DraftTemper returns the temperature for Temper if the target samples at temperature target: less than 1 for a target below 1. At 0 the
// target chooses the draft's likeliest token more often than the draft's distribution says.
func DraftTemper(target float64) float64 {
	return worth.GreedyTemper + (1-worth.GreedyTemper)*min(target, 1)
}

// othersCount is how many tokens those count as of which only the total probability is known.
const othersCount = 1 << 5

// Temper returns the candidates with their probabilities at temperature t: p^(1/t), normalised. Only the total probability of all other
// tokens is known, so these count as othersCount tokens of equal probability. It returns list itself unless 0 < t < 1.
func Temper(list []Candidate, t float64) []Candidate {
	if !(t > 0 && t < 1) || len(list) == 0 {
		return list
	}
	rest, sum := 1.0, 0.0
	for _, c := range list {
		p := chance(c.LogProb)
		rest -= p
		sum += math.Pow(p, 1/t)
	}
	sum += othersCount * math.Pow(max(rest, 0)/othersCount, 1/t)
	out := make([]Candidate, len(list))
	for i, c := range list {
		out[i] = Candidate{c.Token, float32(float64(c.LogProb)/t - math.Log(sum))}
	}
	return out
}

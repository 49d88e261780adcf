package spec

import (
	"fmt"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

// Explored is all that a draft model has computed below a session's last committed token: the nodes that it ran, each with the candidates
// after it. Node 0 is the root; node i is tree row i-1 of the draft model's cache. It outlives the tree that was sent: nodes that the tree
// left out, and nodes that were run while the target verified, are there when the next tree grows.
//
// A Grower grows each tree; rows that were run before are answered from here. So a tree depends only on the
// committed tokens, not on what happened to be explored; unless prompt tokens have foretold a part of it (Sketch).
//
// Invariants: (1) parents come before children, no two children of a node are equal; (2) every node but
// the root is one of its parent's candidates; (3) lists hold the likeliest candidates, width of them.
type Explored struct {
	nodes []explored
	width int
}

type explored struct {
	token   tandem.Token
	at      int // place among the parent's candidates
	parent  int32
	depth   int
	logProb float32 // cumulative, from the root
	list    []Candidate
	further [][]Candidate // what prompt tokens behind it have foretold of the tokens after those in list; nil: none were there
	steps   []Steps       // of further's levels, those that depend on the token before; nil: none does
	run     uint64        // bit i: candidate i of list is a node
	sent    uint64        // bit i: candidate i of list is in the tree that was sent
	inSent  bool
	cost    time.Duration // of running it ahead of time, until somebody used it; 0 if it was not
}

// Len returns the number of nodes, root included; 0 if nothing is known.
func (e *Explored) Len() int { return len(e.nodes) }

// Width returns how many candidates of each node are held.
func (e *Explored) Width() int { return e.width }

// Clear forgets everything.
func (e *Explored) Clear() {
	clear(e.nodes)
	e.nodes, e.width = e.nodes[:0], 0
}

// Start makes the root of an empty Explored; list holds the likeliest candidates after it and is kept. width ≤ 64 is
// the number of candidates that each node has, unless there are fewer.
func (e *Explored) Start(list []Candidate, width int) {
	e.nodes, e.width = append(e.nodes[:0], explored{parent: -1, list: list}), width
}

// Add adds the child of parent with that token, one of parent's candidates, and returns the new node; list holds the
// likeliest candidates after it. cost is the time it took if it was run ahead of time, else 0.
func (e *Explored) Add(parent int32, token tandem.Token, list []Candidate, cost time.Duration) int32 {
	n := explored{token: token, at: e.find(parent, token), parent: parent, list: list, cost: cost}
	e.hang(&n)
	n.inSent = e.nodes[parent].inSent && e.nodes[parent].sent&(1<<n.at) != 0
	e.nodes = append(e.nodes, n)
	return int32(len(e.nodes) - 1)
}

// Child returns the child of a node with that token, -1 if it was not run.
func (e *Explored) Child(node int32, token tandem.Token) int32 {
	for i := int(node) + 1; i < len(e.nodes); i++ {
		if e.nodes[i].parent == node && e.nodes[i].token == token {
			return int32(i)
		}
	}
	return -1
}

// Depth returns a node's distance from the root.
func (e *Explored) Depth(node int32) int { return e.nodes[node].depth }

// Candidates returns the candidates after a node, to be read only.
func (e *Explored) Candidates(node int32) []Candidate { return e.nodes[node].list }

// Foretell keeps what prompt tokens behind a node guessed: levels[i] are the guesses for the token i + 2 places after it, likeliest first.
func (e *Explored) Foretell(node int32, levels [][]Candidate) { e.nodes[node].further = levels }

// Steps has a level's guesses by the token before: one list for each token that may stand there.
type Steps map[tandem.Token][]Candidate

// ForetellSteps is Foretell where guesses depend on the token before: those of level i are in steps[i] under that token, or levels[i] if
// it is not there.
func (e *Explored) ForetellSteps(node int32, levels [][]Candidate, steps []Steps) {
	e.nodes[node].further, e.nodes[node].steps = levels, steps
}

// Foretells returns the guesses of a level, from 0, behind token before, as ForetellSteps noted them; to be read only. node has that level.
func (e *Explored) Foretells(node int32, level int, before tandem.Token) []Candidate {
	x := &e.nodes[node]
	if level < len(x.steps) {
		if list, ok := x.steps[level][before]; ok {
			return list
		}
	}
	return x.further[level]
}

// Foretold returns the levels that Foretell noted; nil if it noted none or node is -1; to be read only.
func (e *Explored) Foretold(node int32) [][]Candidate {
	if node < 0 {
		return nil
	}
	return e.nodes[node].further
}

// Use marks a node as used in a tree and returns the cost that Add was told of; later calls return 0.
func (e *Explored) Use(node int32) time.Duration {
	cost := e.nodes[node].cost
	e.nodes[node].cost = 0
	return cost
}

// Has reports whether a token is among the candidates after a node and has not been run.
func (e *Explored) Has(node int32, token tandem.Token) bool {
	at := slices.IndexFunc(e.nodes[node].list, func(c Candidate) bool { return c.Token == token })
	return at >= 0 && e.nodes[node].run&(1<<at) == 0
}

// Follow returns the nodes on the path of the tokens that were committed after the root, in order, as far as they were run.
func (e *Explored) Follow(tokens []tandem.Token) (path []int32) {
	at := int32(0)
	for _, t := range tokens {
		if at = e.Child(at, t); at < 0 {
			break
		}
		path = append(path, at)
	}
	return path
}

// Hits calls saw for the tokens committed after the root, in order: hit says whether token i was the likeliest candidate after those before
// it. It stops behind the first token that was not run.
func (e *Explored) Hits(tokens []tandem.Token, saw func(i int, hit bool)) {
	at := int32(0)
	for i := 0; i < len(tokens) && at >= 0; i++ {
		list := e.nodes[at].list
		saw(i, len(list) > 0 && list[0].Token == tokens[i])
		at = e.Child(at, tokens[i])
	}
}

// Reroot makes node the root and forgets all nodes that are not below it. It returns the old numbers of those that
// stay, ascending; their new numbers are 1, 2 …
func (e *Explored) Reroot(node int32) (kept []int32) {
	in := make([]bool, len(e.nodes))
	in[node] = true
	for i := int(node) + 1; i < len(e.nodes); i++ {
		if in[i] = in[e.nodes[i].parent]; in[i] {
			kept = append(kept, int32(i))
		}
	}
	e.retain(node, kept)
	return kept
}

// Retain forgets every node but the root and those in kept: ascending, with their parents.
func (e *Explored) Retain(kept []int32) { e.retain(0, kept) }

func (e *Explored) retain(root int32, kept []int32) {
	place := make([]int32, len(e.nodes))
	top := e.nodes[root]
	e.nodes[0] = explored{parent: -1, list: top.list, further: top.further, steps: top.steps, cost: top.cost}
	place[root] = 0
	for i, n := range kept { // n > i: nothing is overwritten before it has moved
		x, parent := e.nodes[n], place[e.nodes[n].parent]
		place[n] = int32(i + 1)
		e.nodes[i+1] = explored{token: x.token, at: x.at, parent: parent, list: x.list, further: x.further, steps: x.steps, cost: x.cost}
		e.hang(&e.nodes[i+1])
	}
	clear(e.nodes[len(kept)+1:])
	e.nodes = e.nodes[:len(kept)+1]
}

// hang attaches n to its parent and derives its depth and log-probability.
func (e *Explored) hang(n *explored) {
	p := &e.nodes[n.parent]
	p.run |= 1 << n.at
	n.depth, n.logProb = p.depth+1, p.logProb+min(p.list[n.at].LogProb, 0)
}

// Sent records the tree that was sent to the target, for Likely. A child of the root or of a node that was run must be one of that node's
// candidates, or Sent panics. It returns how many of the tree's nodes are candidates of nodes below number known.
func (e *Explored) Sent(t tandem.Tree, known int) (old int) { return e.mark(t, known, e.find) }

// Resent records again the tree that was sent, after some nodes were computed anew. A node that is no longer a candidate is left out, with
// all below it.
func (e *Explored) Resent(t tandem.Tree) { e.mark(t, 0, e.place) }

// mark marks the nodes of t, of which at returns the place among a node's candidates; -1: it is none of them.
func (e *Explored) mark(t tandem.Tree, known int, at func(int32, tandem.Token) int) (old int) {
	for i := range e.nodes {
		e.nodes[i].sent, e.nodes[i].inSent = 0, i == 0
	}
	place := make([]int32, t.Len()) // node numbers, -1 if not run
	for i, token := range t.Tokens[1:] {
		parent := place[t.Parents[i+1]]
		if place[i+1] = -1; parent < 0 {
			continue
		}
		at := at(parent, token)
		if at < 0 {
			continue
		}
		e.nodes[parent].sent |= 1 << at
		if e.nodes[parent].run&(1<<at) != 0 {
			place[i+1] = e.Child(parent, token)
			e.nodes[place[i+1]].inSent = true
		}
		if int(parent) < known {
			old++
		}
	}
	return old
}

// place returns the place of a token among the candidates after a node, -1 if it is none.
func (e *Explored) place(node int32, token tandem.Token) int {
	return slices.IndexFunc(e.nodes[node].list, func(c Candidate) bool { return c.Token == token })
}

// find returns the place of a token that must be among the candidates after a node.
func (e *Explored) find(node int32, token tandem.Token) int {
	at := e.place(node, token)
	if at < 0 {
		panic(fmt.Sprintf("spec: token %d is not among the %d candidates of node %d", token, len(e.nodes[node].list), node))
	}
	return at
}

// Likely returns at most n rows to run next while the target verifies the tree that was sent, likeliest
// first; Parent is the row in the draft model's cache. None is deeper than depth or less likely than least.
//
// It enumerates outcomes. The next root is a pair (v, b): the walk through the sent tree stops at v, and the target's own token there is b,
// which is not a child of v in that tree. The draft model's chance of the pair is the cumulative probability of candidate b of v. Leaves of
// the sent tree that were not run are in the same order, because running them shows their pairs.
func (e *Explored) Likely(n, depth int, least float64) []Row {
	if n < 1 {
		return nil
	}
	rows, bound := []Row(nil), logOf(least)
	for i := range e.nodes {
		x := &e.nodes[i]
		if !x.inSent || x.depth >= depth {
			continue
		}
		for at, c := range x.list {
			lp := x.logProb + min(c.LogProb, 0)
			if !(lp >= bound) || len(rows) == n && lp <= rows[n-1].LogProb {
				break // the others are less likely
			}
			if x.run&(1<<at) != 0 {
				continue
			}
			to, _ := slices.BinarySearchFunc(rows, lp, func(r Row, lp float32) int {
				if r.LogProb >= lp {
					return -1
				}
				return 1
			})
			rows = slices.Insert(rows[:min(len(rows), n-1)], to, Row{Token: c.Token, Parent: int32(i) - 1, Depth: x.depth + 1, LogProb: lp})
		}
	}
	return rows
}

// Outcomes returns the nodes that become the next root if the walk stops at their parent and the target draws their token,
// and their log-probabilities. It leaves out nodes of less chance than least.
func (e *Explored) Outcomes(least float64) (nodes []int32, logProbs []float32) {
	for i := range e.nodes {
		if x := &e.nodes[i]; i > 0 && !x.inSent && e.nodes[x.parent].inSent && x.logProb >= logOf(least) {
			nodes, logProbs = append(nodes, int32(i)), append(logProbs, x.logProb)
		}
	}
	return nodes, logProbs
}

package spec

import (
	"fmt"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

// Explored is all that a draft model has said below a session's last committed token: the nodes that it
// ran, each with the candidates after it. Node 0 is the root; node i is tree row i-1 of the draft
// model's cache. It outlives the tree that was sent: what the tree did not take, and what was
// run while the target verified, is there when the next tree grows.
//
// A tree grows out of it by a Grower, whose rows are answered from here where they were run before. So a tree
// depends on the committed tokens alone, not on what happened to be explored.
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
	run     uint64 // bits of list: those that are nodes
	sent    uint64 // bits of list: those in the tree that was sent
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

// Start makes the root of an empty Explored: list are the likeliest candidates after it. It keeps list,
// and so holds width ≤ 64 candidates of each node, if there are so many.
func (e *Explored) Start(list []Candidate, width int) {
	e.nodes, e.width = append(e.nodes[:0], explored{parent: -1, list: list}), width
}

// Add adds the child of parent with that token, one of its candidates, after which the likeliest are list, and
// returns the new node. cost is what it took if nobody has asked for it yet, else 0.
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

// Use takes a node for a tree and returns what it had cost ahead of time, 0 the second time.
func (e *Explored) Use(node int32) time.Duration {
	cost := e.nodes[node].cost
	e.nodes[node].cost = 0
	return cost
}

// Follow returns how far tokens, what was committed after the root, go down the nodes that were run: the
// nodes they pass, in order.
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

// Hits tells saw of each of tokens, what was committed after the root, whether it was the first candidate after those before it,
// as far as what came before it was run.
func (e *Explored) Hits(tokens []tandem.Token, saw func(i int, hit bool)) {
	at := int32(0)
	for i := 0; i < len(tokens) && at >= 0; i++ {
		list := e.nodes[at].list
		saw(i, len(list) > 0 && list[0].Token == tokens[i])
		at = e.Child(at, tokens[i])
	}
}

// Reroot makes node the root and forgets what is not below it. It returns the nodes below it that stay,
// ascending, by their numbers before; they are 1, 2 … now.
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
	e.nodes[0] = explored{parent: -1, list: top.list, cost: top.cost}
	place[root] = 0
	for i, n := range kept { // n > i: nothing is overwritten before it has moved
		x, parent := e.nodes[n], place[e.nodes[n].parent]
		place[n] = int32(i + 1)
		e.nodes[i+1] = explored{token: x.token, at: x.at, parent: parent, list: x.list, cost: x.cost}
		e.hang(&e.nodes[i+1])
	}
	clear(e.nodes[len(kept)+1:])
	e.nodes = e.nodes[:len(kept)+1]
}

// hang derives what a node has from its parent.
func (e *Explored) hang(n *explored) {
	p := &e.nodes[n.parent]
	p.run |= 1 << n.at
	n.depth, n.logProb = p.depth+1, p.logProb+min(p.list[n.at].LogProb, 0)
}

// Sent notes the tree that was sent to the target; Likely goes by it. Every node of it is the root or a
// candidate of a node. It returns how many nodes are candidates of the first known nodes.
func (e *Explored) Sent(t tandem.Tree, known int) (old int) {
	for i := range e.nodes {
		e.nodes[i].sent, e.nodes[i].inSent = 0, i == 0
	}
	place := make([]int32, t.Len()) // node numbers, -1 if not run
	for i, token := range t.Tokens[1:] {
		parent := place[t.Parents[i+1]]
		place[i+1] = -1
		at := e.find(parent, token)
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

// find returns the place of a token among the candidates after a node.
func (e *Explored) find(node int32, token tandem.Token) int {
	at := slices.IndexFunc(e.nodes[node].list, func(c Candidate) bool { return c.Token == token })
	if at < 0 {
		panic(fmt.Sprintf("spec: token %d is not among the %d candidates of node %d", token, len(e.nodes[node].list), node))
	}
	return at
}

// Likely returns the at most n rows to run next while the target verifies the tree that was sent, likeliest
// first, their Parent as in the draft model's cache; none deeper than depth or of less chance than least.
//
// It enumerates outcomes. The next root is a pair (v, b): the walk through the tree that was sent stops
// at v, and the target's own token there is b, which is no child of v in that tree. The draft model's chance
// of the pair is the cumulative probability of the candidate b of v. Leaves of the sent tree that were
// not run come in the same order, so that their pairs are known.
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
			rows = slices.Insert(rows[:min(len(rows), n-1)], to, Row{c.Token, int32(i) - 1, x.depth + 1, lp})
		}
	}
	return rows
}

// Outcomes returns the nodes that would be the next root if the walk stopped at their parent, of those of
// at least that chance, and their log-probabilities.
func (e *Explored) Outcomes(least float64) (nodes []int32, logProbs []float32) {
	for i := range e.nodes {
		if x := &e.nodes[i]; i > 0 && !x.inSent && e.nodes[x.parent].inSent && x.logProb >= logOf(least) {
			nodes, logProbs = append(nodes, int32(i)), append(logProbs, x.logProb)
		}
	}
	return nodes, logProbs
}

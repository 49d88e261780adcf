package tandem

import (
	"fmt"
	"strconv"
	"strings"
)

// DefaultBounds returns the bounds of a request that names strategy s but no bounds. The fixed strategy drafts trees of exactly
// this shape. The others choose their shapes; their bounds are generous, so that the strategy decides and not the bounds. The planner's
// trees may be one chain: a text that repeats itself is guessed far ahead. LLMCad and Minions have no plan that says how deep
// drafting pays, so their trees are less deep.
func DefaultBounds(s Strategy) Bounds {
	switch s {
	case StrategyFixed, "":
		return Bounds{Nodes: 16, Depth: 7, Width: 10}
	case StrategyPlanner:
		return Bounds{Nodes: 32, Depth: 31, Width: 8}
	}
	return Bounds{Nodes: 32, Depth: 8, Width: 8}
}

// StreamedBounds are the planner's bounds for a target whose weights are read from a disk in every pass: more rows cost it little, up to
// the widest pass that there is.
var StreamedBounds = Bounds{Nodes: 256, Depth: 31, Width: 32}

// Bounds limits the trees to draft: the Width likeliest nodes of each level have children, down to Depth levels, and the Nodes best
// nodes are kept, root included (Dovetail's γ/depth/k). Width 1 is a chain.
type Bounds struct {
	Nodes int
	Depth int
	Width int
}

// Plain reports whether b allows no draft at all.
func (b Bounds) Plain() bool { return b.Nodes <= 1 || b.Depth <= 0 || b.Width <= 0 }

func (b Bounds) String() string {
	if b.Plain() {
		return "none"
	}
	return fmt.Sprintf("%d/%d/%d", b.Nodes, b.Depth, b.Width)
}

// ParseBounds reads "nodes/depth/width", for example "16/7/10", or "none".
func ParseBounds(s string) (Bounds, error) {
	if s == "none" {
		return Bounds{}, nil
	}
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return Bounds{}, Errorf("tree", Invalid, "tree %q: want nodes/depth/width, for example 16/7/10, or none", s)
	}
	var n [3]int
	for i, name := range []string{"nodes", "depth", "width"} {
		v, err := strconv.Atoi(parts[i])
		if err != nil {
			return Bounds{}, Errorf("tree", Invalid, "tree %q: %s %q is not a number", s, name, parts[i])
		}
		n[i] = v
	}
	b := Bounds{n[0], n[1], n[2]}
	return b, b.validate(Limits{})
}

// Tree is a token tree. Node 0 is the root, a token already committed; every other node is a guess
// for the token after its parent, or a prompt node. Parents come before children.
//
// Prompt nodes ask the target to guess (PPD): each is a row with a trained embedding in place of a token. They come last, and their
// parents are nodes of either kind. They count wherever nodes are counted, but are never in a path.
type Tree struct {
	Tokens   []Token   // of a prompt node: the number of its embedding, from 0
	Parents  []int32   // Parents[0] = -1, else Parents[i] < i
	LogProbs []float32 // per node: cumulative draft log-probability (nats), 0 at the root and for prompt nodes; nil if unknown
	Prompts  int       // how many of the last nodes are prompt nodes
}

// Len returns the number of nodes, root and prompt nodes included.
func (t Tree) Len() int { return len(t.Tokens) }

// Guesses returns the number of nodes with tokens, root included.
func (t Tree) Guesses() int { return len(t.Tokens) - t.Prompts }

// Bare returns t without its prompt nodes. It shares t's memory.
func (t Tree) Bare() Tree {
	n := t.Guesses()
	t.Tokens, t.Parents, t.Prompts = t.Tokens[:n:n], t.Parents[:n:n], 0
	if t.LogProbs != nil {
		t.LogProbs = t.LogProbs[:n:n]
	}
	return t
}

// Depths returns each node's distance from the root and the largest of them.
func (t Tree) Depths() ([]int32, int) {
	d := make([]int32, len(t.Tokens))
	deepest := int32(0)
	for i := 1; i < len(d); i++ {
		d[i] = d[t.Parents[i]] + 1
		deepest = max(deepest, d[i])
	}
	return d, int(deepest)
}

// MostPrompts is the number of embeddings for prompt nodes that a model may have at most.
const MostPrompts = 1024

// Validate checks that t is a tree in topological order with at most maxNodes nodes, tokens in
// [0, vocab), embeddings below MostPrompts, and no two equal children of one node. It reads no entry that it has not checked.
func (t Tree) Validate(maxNodes, vocab int) error {
	const op = "tree"
	n := len(t.Tokens)
	switch {
	case n == 0:
		return Errorf(op, Invalid, "tree has no nodes: want at least the root")
	case n > maxNodes:
		return Errorf(op, Invalid, "tree has %d nodes: at most %d allowed", n, maxNodes)
	case len(t.Parents) != n:
		return Errorf(op, Invalid, "tree has %d tokens but %d parents", n, len(t.Parents))
	case t.LogProbs != nil && len(t.LogProbs) != n:
		return Errorf(op, Invalid, "tree has %d tokens but %d log-probabilities", n, len(t.LogProbs))
	case t.Parents[0] != -1:
		return Errorf(op, Invalid, "root has parent %d: want -1", t.Parents[0])
	case t.Prompts < 0 || t.Prompts >= n:
		return Errorf(op, Invalid, "%d prompt nodes among %d nodes: want 0 to %d", t.Prompts, n, n-1)
	}
	type edge struct {
		parent int32
		token  Token
	}
	seen := make(map[edge]struct{}, n)
	for i, tok := range t.Tokens {
		switch prompt := i >= t.Guesses(); {
		case prompt && (tok < 0 || tok >= MostPrompts):
			return Errorf(op, Invalid, "prompt node %d has embedding %d: want 0 to %d", i, tok, MostPrompts-1)
		case !prompt && (tok < 0 || int(tok) >= vocab):
			return Errorf(op, Invalid, "node %d has token %d: vocabulary has %d", i, tok, vocab)
		}
		if i == 0 {
			continue
		}
		p := t.Parents[i]
		if p < 0 || int(p) >= i {
			return Errorf(op, Invalid, "node %d has parent %d: want 0 to %d", i, p, i-1)
		}
		e := edge{p, tok}
		if i >= t.Guesses() {
			e.token = -1 - tok // apart from tokens
		}
		if _, dup := seen[e]; dup {
			return Errorf(op, Invalid, "node %d has two children with token %d", p, tok)
		}
		seen[e] = struct{}{}
	}
	return nil
}

// Root returns the tree of a committed token alone: a round without a draft.
func Root(t Token) Tree { return Tree{Tokens: []Token{t}, Parents: []int32{-1}} }

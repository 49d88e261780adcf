package spec

import (
	"fmt"
	"math"

	"github.com/tandem-llm/tandem"
)

// DefaultBranch is LLMCad's branch threshold (Xu et al., 2023, section 3.2).
const DefaultBranch = 0.3

// paceTogether is how many branches a draft pass advances at most. A pass of a draft model costs about the same for one row and for a few.
const paceTogether = 1 << 2

// Pacer is the Grower of LLMCad (section 3.2, confidence-based branch pacer): a tree of a few long
// branches, the more confident ones longer.
//
// A step of branch i runs its newest token. The best candidate becomes its next token; every other candidate of at least the threshold
// opens a branch. Let C_i be the product of the probabilities of the tokens from the root to the branch's newest, T_i the tokens made for
// it since it opened, and M = ΣT the tokens made in all. The next step is that of the branch furthest below its fair share: the largest
// M·C_i/ΣC − T_i, among equals the oldest. The sum goes over all branches; those at the bounds' depth take no more steps.
//
// A draft pass takes several steps, as if no C changed: it takes the best branch, counts its token, and goes on
// until the rule chooses a branch that is in the pass already and so must wait for its result.
//
// Drafting ends when the likeliest branch that could go on has less probability than stop (α), or at
// its bounds: Nodes in all, Depth tokens from the root to a branch's end, Width branches.
//
// Invariants: (1) nodes holds the tree in order of creation, so parents come before children; (2) each
// branch's last entry is a node without children.
type Pacer struct {
	root         tandem.Token
	bounds       tandem.Bounds
	branch, stop float32 // log-probabilities

	nodes    []node // ids count from 1
	rows     int32  // row numbers given out
	branches []branch
	pending  []int // branches that the last Pending advances
	started  bool
	opening  bool // the root is pending
}

type branch struct {
	last   int // place in nodes
	tokens int // made for it: T
}

// NewPacer returns a pacer below root. A candidate of probability branch or more opens a branch, 0 means
// DefaultBranch; drafting ends below stop, 0 means never.
func NewPacer(root tandem.Token, p tandem.Bounds, branch, stop float64) *Pacer {
	if branch == 0 {
		branch = DefaultBranch
	}
	return &Pacer{root: root, bounds: p, branch: logOf(branch), stop: logOf(stop)}
}

// Pending implements Grower.
func (p *Pacer) Pending(room int) []Row {
	p.pending = p.pending[:0]
	if !p.started {
		p.started = true
		if p.bounds.Plain() {
			return nil
		}
		p.opening = true
		return []Row{{Token: p.root, Parent: -1}}
	}
	if !p.hopeful() {
		return nil
	}
	var rows []Row
	for len(rows) < min(paceTogether, room, p.bounds.Nodes-1-len(p.nodes)) {
		next := p.next()
		if next < 0 {
			break
		}
		p.pending = append(p.pending, next)
		n := &p.nodes[p.branches[next].last]
		n.row = p.rows
		p.rows++
		parent := int32(-1)
		if n.parent != 0 {
			parent = p.nodes[n.parent-1].row
		}
		rows = append(rows, Row{Token: n.token, Parent: parent, Depth: n.depth, LogProb: n.logProb, Own: n.own})
	}
	return rows
}

// Shorten implements Grower.
func (p *Pacer) Shorten(n int) {
	if p.opening {
		return // the root is one row
	}
	for _, b := range p.pending[n:] {
		p.nodes[p.branches[b].last].row = -1
		p.rows--
	}
	p.pending = p.pending[:n]
}

// hopeful reports whether the likeliest branch that could go on is likely enough.
func (p *Pacer) hopeful() bool {
	for _, b := range p.branches {
		if n := p.nodes[b.last]; n.logProb >= p.stop && p.live(n) {
			return true
		}
	}
	return false
}

// live reports whether a branch that ends with n can go on: n has not been run, and lies above the bounds' depth.
func (p *Pacer) live(n node) bool { return n.row < 0 && n.depth < p.bounds.Depth }

// next returns the branch of the next step, counting pending steps as done; -1 if there is none, or if it is pending already.
func (p *Pacer) next() int {
	made, confidence := len(p.pending), 0.0
	for _, b := range p.branches {
		made += b.tokens
		confidence += math.Exp(float64(p.nodes[b.last].logProb))
	}
	best, most := -1, math.Inf(-1)
	for i, b := range p.branches {
		n := p.nodes[b.last]
		tokens := b.tokens
		if p.advances(i) {
			tokens, n.row = tokens+1, -1
			n.depth++
		}
		if !p.live(n) {
			continue
		}
		share := float64(made) * math.Exp(float64(n.logProb)) / max(confidence, math.SmallestNonzeroFloat64)
		if deficit := share - float64(tokens); deficit > most {
			best, most = i, deficit
		}
	}
	if best >= 0 && p.advances(best) {
		return -1
	}
	return best
}

// advances reports whether branch i is pending.
func (p *Pacer) advances(i int) bool {
	for _, b := range p.pending {
		if b == i {
			return true
		}
	}
	return false
}

// Absorb implements Grower.
func (p *Pacer) Absorb(candidates [][]Candidate) {
	want := len(p.pending)
	if p.opening {
		want = 1
	}
	if len(candidates) != want {
		panic(fmt.Sprintf("spec: %d candidate lists for %d pending rows", len(candidates), want))
	}
	if p.opening {
		p.opening = false
		p.extend(-1, node{}, candidates[0])
	}
	for i, b := range p.pending {
		p.extend(b, p.nodes[p.branches[b].last], candidates[i])
	}
	p.pending = p.pending[:0]
}

// extend adds the candidates after parent, which ends branch at (-1: the root): the first goes on with it,
// the others open branches if they are likely enough.
func (p *Pacer) extend(at int, parent node, list []Candidate) {
	first := true
	for _, c := range list[:min(len(list), p.bounds.Width)] {
		lp := min(c.LogProb, 0)
		if !(lp > float32(math.Inf(-1))) {
			continue
		}
		if len(p.nodes) >= p.bounds.Nodes-1 {
			return
		}
		opens := at < 0 || !first
		if opens && (len(p.branches) >= p.bounds.Width || !first && lp < p.branch) {
			return
		}
		first = false
		p.nodes = append(p.nodes, node{id: int32(len(p.nodes) + 1), parent: parent.id, row: -1, depth: parent.depth + 1,
			token: c.Token, logProb: parent.logProb + lp, own: lp})
		if opens {
			p.branches = append(p.branches, branch{last: len(p.nodes) - 1, tokens: 1})
		} else {
			p.branches[at].last = len(p.nodes) - 1
			p.branches[at].tokens++
		}
	}
}

// Draft implements Grower.
func (p *Pacer) Draft() Draft { return draftOf(p.root, p.nodes) }

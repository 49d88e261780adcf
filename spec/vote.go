package spec

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Ballot is one drafter's tree with the weight of its vote.
type Ballot struct {
	Tree   tandem.Tree // valid, with the same root in all ballots; without LogProbs every node counts as certain
	Weight float64     // a ballot whose weight is not positive and finite has no vote
}

// union is several trees over one root laid on top of each other, node by node. A parent comes before its children.
type union struct {
	tokens      []tandem.Token
	parents     []int32
	first, next []int32   // a node's first child and next sibling, -1 if there is none
	confidence  []float64 // Σ w_d·P_d(node) / Σ w_d: at most the parent's
	weight      []float64 // Σ w_d of the ballots with that node
	support     []uint32  // those ballots, a bit each; from the 33rd on they have no bit
}

func merge(ballots []Ballot) union {
	u := union{}
	if len(ballots) == 0 {
		return u
	}
	most := 1
	for _, b := range ballots {
		most += b.Tree.Len()
	}
	u.tokens, u.parents, u.first, u.next = make([]tandem.Token, 0, most), make([]int32, 0, most), make([]int32, 0, most),
		make([]int32, 0, most)
	u.confidence, u.weight, u.support = make([]float64, 0, most), make([]float64, 0, most), make([]uint32, 0, most)
	u.add(ballots[0].Tree.Tokens[0], -1)
	total := 0.0
	var place []int32  // of a ballot's nodes in u
	var mass []float64 // their chances
	for d, b := range ballots {
		w := b.Weight
		if !(w > 0) || math.IsInf(w, 1) {
			continue
		}
		total += w
		place, mass = append(place[:0], 0), append(mass[:0], 1)
		u.vote(0, d, w, w)
		for i := 1; i < b.Tree.Guesses(); i++ {
			parent := b.Tree.Parents[i]
			p := mass[parent]
			if b.Tree.LogProbs != nil {
				p = min(p, chance(b.Tree.LogProbs[i]))
			}
			at := u.child(place[parent], b.Tree.Tokens[i])
			if at < 0 {
				at = u.add(b.Tree.Tokens[i], place[parent])
			}
			u.vote(at, d, w, w*p)
			place, mass = append(place, at), append(mass, p)
		}
	}
	for i := range u.confidence {
		if total > 0 {
			u.confidence[i] /= total
		}
		if p := u.parents[i]; p >= 0 { // already true, except for rounding
			u.confidence[i] = min(u.confidence[i], u.confidence[p])
		}
	}
	return u
}

// chance turns a log-probability into a probability; NaN counts as impossible.
func chance(logProb float32) float64 {
	if logProb != logProb {
		return 0
	}
	return min(math.Exp(float64(logProb)), 1)
}

func (u *union) add(token tandem.Token, parent int32) int32 {
	at := int32(len(u.tokens))
	u.tokens, u.parents = append(u.tokens, token), append(u.parents, parent)
	u.first, u.next = append(u.first, -1), append(u.next, -1)
	u.confidence, u.weight, u.support = append(u.confidence, 0), append(u.weight, 0), append(u.support, 0)
	if parent >= 0 {
		u.first[at], u.next[at], u.first[parent] = -1, u.first[parent], at
	}
	return at
}

func (u *union) child(of int32, token tandem.Token) int32 {
	at := u.first[of]
	for at >= 0 && u.tokens[at] != token {
		at = u.next[at]
	}
	return at
}

// Bits of a set of ballots, and of one of trees.
const ballotBits, supportBits = 1 << 5, 1 << 4

func (u *union) vote(at int32, ballot int, weight, mass float64) {
	u.weight[at] += weight
	u.confidence[at] += mass
	if ballot < ballotBits {
		u.support[at] |= 1 << ballot
	}
}

// Merge merges the trees of all ballots into one. LogProbs are the logarithms of the weighted mean confidence, Σ w_d·P_d(node) / Σ w_d,
// where a drafter without the node has P_d = 0. The most confident nodes are kept, at most nodes of them, root included, each with its
// parent. Bit d of support[i] is set if ballot d has node i; ballots from the 33rd on have no bit. Without ballots the tree is empty.
func Merge(ballots []Ballot, nodes int) (t tandem.Tree, support []uint32) {
	u := merge(ballots)
	if len(u.tokens) == 0 {
		return t, nil
	}
	kept := make([]int32, len(u.tokens))
	for i := range kept {
		kept[i] = int32(i)
	}
	if nodes = max(nodes, 1); nodes < len(kept) {
		// A child's confidence is at most its parent's and its index larger, so parents come first.
		slices.SortFunc(kept[1:], func(a, b int32) int {
			return cmp.Or(cmp.Compare(u.confidence[b], u.confidence[a]), cmp.Compare(a, b))
		})
		kept = kept[:nodes]
		slices.Sort(kept)
	}
	place := make([]int32, len(u.tokens))
	for i, at := range kept {
		place[at] = int32(i)
		parent := int32(-1)
		if p := u.parents[at]; p >= 0 {
			parent = place[p]
		}
		t.Tokens, t.Parents = append(t.Tokens, u.tokens[at]), append(t.Parents, parent)
		t.LogProbs = append(t.LogProbs, u.logProb(at))
		support = append(support, u.support[at])
	}
	return t, support
}

func (u *union) logProb(at int32) float32 {
	if at == 0 {
		return 0
	}
	return float32(math.Log(u.confidence[at]))
}

// Majority is Minions' tree-based weighted majority (Wang et al., 2024, section 3.2). A node's weight is the sum of the weights of the
// ballots that hold it; from the root the path always goes to the heaviest child. Among children of equal weight it takes the one with the
// higher confidence (see Merge), then the one of the lower ballot. voted, the paper's word, is the heaviest ballot that holds the whole
// path; of several, the lowest. Without ballots the chain is empty and voted -1.
func Majority(ballots []Ballot) (chain tandem.Tree, voted int) {
	u := merge(ballots)
	if len(u.tokens) == 0 {
		return chain, -1
	}
	last := int32(0)
	for at := int32(0); at >= 0; at = u.heaviest(at) {
		chain.Tokens = append(chain.Tokens, u.tokens[at])
		chain.Parents = append(chain.Parents, int32(len(chain.Parents)-1))
		chain.LogProbs = append(chain.LogProbs, u.logProb(at))
		last = at
	}
	// A ballot that holds the last node holds all before it.
	return chain, heaviestOf(ballots, u.support[last])
}

// heaviest returns the child that the path goes to from a node, -1 at a leaf.
func (u *union) heaviest(of int32) int32 {
	best := int32(-1)
	for at := u.first[of]; at >= 0; at = u.next[at] {
		if best < 0 || cmp.Or(cmp.Compare(u.weight[at], u.weight[best]), cmp.Compare(u.confidence[at], u.confidence[best]),
			cmp.Compare(bits.TrailingZeros32(u.support[best]), bits.TrailingZeros32(u.support[at])), cmp.Compare(best, at)) > 0 {
			best = at
		}
	}
	return best
}

// heaviestOf returns the heaviest ballot of a set; of an empty set the first ballot.
func heaviestOf(ballots []Ballot, set uint32) int {
	best := -1
	for d := range min(len(ballots), ballotBits) {
		if set>>d&1 != 0 && (best < 0 || ballots[d].Weight > ballots[best].Weight) {
			best = d
		}
	}
	return max(best, 0)
}

// Support returns, for each node of t, which of several trees over the same root hold it: bit i for tree i; trees
// from the 17th on have no bit.
func Support(t tandem.Tree, trees []tandem.Tree) []uint16 {
	out := make([]uint16, t.Len())
	place := make([]int32, t.Len()) // of a node in another tree, -1 if it is not there
	for i, other := range trees[:min(len(trees), supportBits)] {
		for n := range place[:t.Guesses()] {
			place[n] = 0
			if n > 0 {
				if place[n] = place[t.Parents[n]]; place[n] >= 0 {
					place[n] = child(other, place[n], t.Tokens[n])
				}
			}
			if place[n] >= 0 {
				out[n] |= 1 << i
			}
		}
	}
	return out
}

// Held returns how many of the first committed tokens t holds as a path from the root.
func Held(t tandem.Tree, committed []tandem.Token) int {
	at := int32(0)
	for i, x := range committed {
		if at = child(t, at, x); at < 0 {
			return i
		}
	}
	return len(committed)
}

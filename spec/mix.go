package spec

import (
	"cmp"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Mix merges several drafters' trees and learns how likely their guesses are together. It is a logistic model: the chance of a node
// whose parent is accepted is σ(bias + Σ over the drafters), where a drafter that guessed the node adds slope·logit(p) + bonus, p being
// its own probability after the parent, and one that only guessed other tokens there adds missed. One that guessed
// nothing there adds nothing. After each round the coefficients take a step towards what was committed (online gradient descent on
// log-loss, as in context mixing, Mahoney, 2005). Not safe for concurrent use.
//
// A weighted mean of probabilities (Merge) cannot say that a guess on which two drafters agree is more likely than either of them says,
// nor that a drafter which is sure of a copy is right although the others do not know the text.
type Mix struct {
	bias float64
	of   map[string]opinion
}

// opinion holds a drafter's coefficients.
type opinion struct{ slope, bonus, missed float64 }

// A drafter that has drafted nothing yet, and the bias at first: about as sure as half of what it says.
var (
	firstOpinion = opinion{slope: 1. / 2, bonus: 1. / 2 / 2, missed: -1. / 2}
	firstBias    = -1. / 2
)

// NewMix returns a model that has learned nothing.
func NewMix() *Mix { return &Mix{bias: firstBias, of: map[string]opinion{}} }

// Clone returns an independent copy.
func (m *Mix) Clone() *Mix {
	out := &Mix{bias: m.bias, of: make(map[string]opinion, len(m.of))}
	for name, o := range m.of {
		out.of[name] = o
	}
	return out
}

// Len returns the number of drafters that it knows.
func (m *Mix) Len() int { return len(m.of) }

func (m *Mix) opinion(drafter string) opinion {
	if o, ok := m.of[drafter]; ok {
		return o
	}
	return firstOpinion
}

// DrafterTree is one drafter's tree.
type DrafterTree struct {
	Drafter string
	Tree    tandem.Tree // valid, with the same root in all; without LogProbs every node counts as certain
}

// nodeGuess is what a drafter's tree has for a node: see its states.
type nodeGuess struct {
	state byte
	logit float64 // if guessed
}

const (
	silent  byte = iota // it guessed nothing after the parent
	missed              // it guessed other tokens
	guessed             //
)

// siblings is the children that several drafters guessed for one node.
type siblings struct {
	tokens  []tandem.Token
	guesses [][]nodeGuess // of each token, by drafter
	after   [][]int32     // each token's node in each drafter's tree, -1 if it is not there
	chance  []float64
}

// siblings returns the children of a node, at[d] in drafter d's tree or -1, with their chances.
func (m *Mix) siblings(all []DrafterTree, kids [][][]int32, at []int32) (b siblings) {
	for d, s := range all {
		if at[d] < 0 {
			continue
		}
		for _, kid := range kids[d][at[d]] {
			i := slices.Index(b.tokens, s.Tree.Tokens[kid])
			if i < 0 {
				i = len(b.tokens)
				b.tokens, b.guesses = append(b.tokens, s.Tree.Tokens[kid]), append(b.guesses, make([]nodeGuess, len(all)))
				b.after = append(b.after, slices.Repeat([]int32{-1}, len(all)))
			}
			b.guesses[i][d], b.after[i][d] = nodeGuess{guessed, logit(s.Tree, kid)}, kid
		}
	}
	total := 0.0
	b.chance = make([]float64, len(b.tokens))
	for i, guesses := range b.guesses {
		sum := m.bias
		for d, s := range all {
			if guesses[d].state == silent && at[d] >= 0 && len(kids[d][at[d]]) > 0 {
				guesses[d].state = missed
			}
			switch o := m.opinion(s.Drafter); guesses[d].state {
			case guessed:
				sum += o.slope*guesses[d].logit + o.bonus
			case missed:
				sum += o.missed
			}
		}
		b.chance[i] = 1 / (1 + math.Exp(-sum))
		total += b.chance[i]
	}
	if total > worth.MostCertain {
		for i := range b.chance {
			b.chance[i] *= worth.MostCertain / total
		}
	}
	return b
}

// logit returns log(p/(1-p)) of the probability of a node after its parent.
func logit(t tandem.Tree, node int32) float64 {
	p := 1.0
	if t.LogProbs != nil {
		p = chance(t.LogProbs[node] - t.LogProbs[t.Parents[node]])
	}
	p = min(max(p, 1-worth.MostCertain), worth.MostCertain)
	return math.Log(p / (1 - p))
}

// children returns each node's children.
func children(t tandem.Tree) [][]int32 {
	kids := make([][]int32, t.Len())
	for i := 1; i < t.Guesses(); i++ {
		kids[t.Parents[i]] = append(kids[t.Parents[i]], int32(i))
	}
	return kids
}

// roots returns the children of all trees' nodes, and their roots.
func roots(all []DrafterTree) (kids [][][]int32, at []int32) {
	for _, s := range all {
		kids = append(kids, children(s.Tree))
	}
	return kids, make([]int32, len(all))
}

// Merge merges the trees into one. It keeps the likeliest nodes, at most that many, root included, each with its parent. LogProbs
// are the logarithms of the chances that nodes are accepted. Without trees the result is empty.
func (m *Mix) Merge(all []DrafterTree, nodes int) (t tandem.Tree) {
	if len(all) == 0 {
		return t
	}
	type place struct {
		token   tandem.Token
		parent  int32
		logProb float64
		at      []int32
	}
	kids, at := roots(all)
	t = tandem.Root(all[0].Tree.Tokens[0])
	t.LogProbs = []float32{0}
	var open []place
	grow := func(node int32, logProb float64, at []int32) {
		b := m.siblings(all, kids, at)
		for i, token := range b.tokens {
			open = append(open, place{token, node, logProb + math.Log(b.chance[i]), b.after[i]})
		}
	}
	for grow(0, 0, at); len(open) > 0 && t.Len() < nodes; {
		best := 0
		for i := range open {
			if cmp.Compare(open[i].logProb, open[best].logProb) > 0 {
				best = i
			}
		}
		p := open[best]
		open = slices.Delete(open, best, best+1)
		node := int32(t.Len())
		t.Tokens, t.Parents, t.LogProbs = append(t.Tokens, p.token), append(t.Parents, p.parent), append(t.LogProbs, float32(p.logProb))
		grow(node, p.logProb, p.at)
	}
	return t
}

// Record takes the drafters' trees of a round and the tokens that were committed after the root.
func (m *Mix) Record(all []DrafterTree, committed []tandem.Token) {
	kids, at := roots(all)
	for _, next := range committed {
		b := m.siblings(all, kids, at)
		found := -1
		for i, token := range b.tokens {
			hit := 0.0
			if token == next {
				hit, found = 1, i
			}
			m.step(all, b.guesses[i], worth.MixRate*(hit-b.chance[i]))
		}
		if found < 0 {
			return
		}
		at = b.after[found]
	}
}

// step moves the coefficients of the guesses of a node.
func (m *Mix) step(all []DrafterTree, guesses []nodeGuess, by float64) {
	m.bias += by / 2
	for d, s := range all {
		if guesses[d].state == silent {
			continue
		}
		o := m.opinion(s.Drafter)
		if guesses[d].state == guessed {
			o.slope, o.bonus = o.slope+by*guesses[d].logit/2, o.bonus+by
		} else {
			o.missed += by
		}
		m.of[s.Drafter] = o
	}
}

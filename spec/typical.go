package spec

import (
	"math"

	"github.com/tandem-llm/tandem"
)

// AcceptTypical applies typical acceptance (Medusa, section 3.3.2; PPD, section 4.5.2): a node is accepted if its parent is and the
// target's probability of its token there is p(x) > min(epsilon, delta·exp(−H(p))), H the entropy. The longest accepted path wins, among
// equals the one with the greatest sum of log p, then the first. It returns the path's nodes below the root, from the top; nil if no child
// of the root is accepted. The caller adds the target's likeliest token after the path: it is the root of the next round, and so the
// token that the papers always take greedily.
//
// after(node, kids) returns the probability of each of kids, the children of node, and the entropy of the whole distribution in nats.
// It is called once for each accepted node that has children, parents before children. p is after temperature, top-k, top-p, min-p and
// penalties. A distribution that is certain accepts that one token alone, so at temperature 0 the rule is exact. t must be valid.
func AcceptTypical(t tandem.Tree, epsilon, delta float64, after func(node int32, kids []int32) (p []float64, entropy float64)) []int32 {
	n := t.Guesses()
	kids := children(t)
	depth, sum := make([]int, n), make([]float64, n) // of accepted nodes
	accepted := make([]bool, n)
	accepted[0] = true
	best := int32(0)
	for node := range int32(n) {
		if !accepted[node] {
			continue
		}
		if d, b := depth[node], depth[best]; d > b || d == b && sum[node] > sum[best] {
			best = node
		}
		below := kids[node]
		for len(below) > 0 && int(below[len(below)-1]) >= n {
			below = below[:len(below)-1] // prompt nodes come last
		}
		if len(below) == 0 {
			continue
		}
		p, entropy := after(node, below)
		least := min(epsilon, delta*math.Exp(-entropy))
		for i, kid := range below {
			if p[i] > least {
				accepted[kid], depth[kid], sum[kid] = true, depth[node]+1, sum[node]+math.Log(p[i])
			}
		}
	}
	path := make([]int32, depth[best])
	for node := best; node > 0; node = t.Parents[node] {
		path[depth[node]-1] = node
	}
	return path
}

package accept

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/spec"
)

// typical accepts nodes by typical acceptance, and advances the history and the constraint. Every other session of the pass has its own
// rule. stuck: no token is allowed behind the nodes.
func (x *Text) typical(t *Tree) (a Accepted, stuck bool) {
	epsilon, delta := x.Sampling.Thresholds()
	a.Path = spec.AcceptTypical(t.Tree, epsilon, delta, func(node int32, kids []int32) ([]float64, float64) {
		h, here := x.history.Clone(), x.place()
		for _, token := range textTo(t.Tree, node) { // of allowed tokens: others have no likelihood
			h.Push(token)
			here = x.follow(here, token)
		}
		shaped := x.allowed(x.sampler.Shape(t.Out.Logits(t.row(node)), x.Sampling, h), here)
		return likelihoods(x.sampler.Distribution(shaped, x.Sampling), t.Tree, kids)
	})
	at, here := int32(0), x.place() // the last accepted node
	for _, node := range a.Path {
		at, here = node, x.follow(here, t.Tokens[node])
		a.Tokens = append(a.Tokens, t.Tokens[node])
		x.history.Push(t.Tokens[node])
	}
	last := sample.Argmax(x.allowed(x.sampler.Shape(t.Out.Logits(t.row(at)), x.Sampling, x.history), here))
	if stuck = x.limits != nil && !here.allows(x.limits, last); !stuck {
		x.settle(x.follow(here, last))
	}
	a.Tokens = append(a.Tokens, last)
	x.history.Push(last)
	if x.Sampling.Logprobs {
		for i, token := range a.Tokens {
			above := int32(0) // the node that the token follows
			if i > 0 {
				above = a.Path[i-1]
			}
			a.Logprobs = append(a.Logprobs, x.sampler.Logprob(t.Out.Logits(t.row(above)), token, x.Sampling.TopLogprobs))
		}
	}
	return a, stuck
}

// allowed returns logits without those of the tokens that may not be drawn.
func (x *Text) allowed(logits []float32, here place) []float32 {
	if x.limits == nil {
		return logits
	}
	return x.sampler.Masked(logits, choice{x.limits, here})
}

// textTo returns the tokens from below the root down to node.
func textTo(t tandem.Tree, node int32) (text []tandem.Token) {
	for ; node > 0; node = t.Parents[node] {
		text = append(text, t.Tokens[node])
	}
	slices.Reverse(text)
	return text
}

// likelihoods returns the probabilities of the nodes' tokens, and the distribution's entropy in nats.
func likelihoods(dist []sample.Prob, t tandem.Tree, nodes []int32) (p []float64, entropy float64) {
	p = make([]float64, len(nodes))
	for _, x := range dist {
		entropy -= x.P * math.Log(x.P)
	}
	for i, node := range nodes {
		at, found := slices.BinarySearchFunc(dist, t.Tokens[node], func(x sample.Prob, t tandem.Token) int { return int(x.Token - t) })
		if found {
			p[i] = dist[at].P
		}
	}
	return p, entropy
}

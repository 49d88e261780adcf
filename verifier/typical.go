package verifier

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/spec"
)

// typical accepts nodes of c's tree by typical acceptance, and advances s.history. It returns the path, its tokens and the token
// after them, and their log-probabilities if they are wanted; first is as in judge. Every other session of the pass has its own
// rule.
func (s *session) typical(c *check, out *engine.Output, first int) (path []int32, tokens []tandem.Token, logprobs []tandem.Logprob) {
	epsilon, delta := s.sampling.Thresholds()
	path = spec.AcceptTypical(c.tree, epsilon, delta, func(node int32, kids []int32) ([]float64, float64) {
		h := s.history.Clone()
		for _, t := range textTo(c.tree, node) {
			h.Push(t)
		}
		shaped := s.v.sampler.Shape(out.Logits(first+int(node)), s.sampling, h)
		return likelihoods(s.v.sampler.Distribution(shaped, s.sampling), c.tree, kids)
	})
	at := int32(0)
	for _, node := range path {
		tokens = append(tokens, c.tree.Tokens[node])
	}
	for _, t := range tokens {
		s.history.Push(t)
	}
	if len(path) > 0 {
		at = path[len(path)-1]
	}
	tokens = append(tokens, sample.Argmax(s.v.sampler.Shape(out.Logits(first+int(at)), s.sampling, s.history)))
	s.history.Push(tokens[len(tokens)-1])
	if s.sampling.Logprobs {
		for i, t := range tokens {
			row := first
			if i > 0 {
				row += int(path[i-1])
			}
			logprobs = append(logprobs, s.v.sampler.Logprob(out.Logits(row), t, s.sampling.TopLogprobs))
		}
	}
	return path, tokens, logprobs
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

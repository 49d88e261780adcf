// Package accept decides which nodes of a tree become text, by the target's logits and the options of the session.
package accept

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// Accept accepts the nodes that the target agrees with and appends their tokens and the next one to the text. It fails with Corrupt, and
// the session has to end, if the logits that it needs are no numbers.
func (x *Text) Accept(t Tree) (a Accepted, err error) {
	if x.Sampling.Typical() && x.Sampling.Temperature > 0 {
		a = x.typical(&t)
	} else {
		a = x.exact(&t)
	}
	for _, node := range append([]int32{0}, a.Path...) {
		if err := t.Out.Sound(t.row(node)); err != nil {
			return Accepted{}, err
		}
	}
	x.Tokens = append(x.Tokens, a.Tokens...)
	x.Hash = x.Hash.Add(a.Tokens...)
	return a, nil
}

// exact accepts the nodes that the target draws, and advances the history.
func (x *Text) exact(t *Tree) (a Accepted) {
	base := tandem.Position(len(x.Tokens))
	a.Path, a.Tokens = spec.Accept(t.Tree, func(node int32) tandem.Token {
		if node > 0 {
			x.history.Push(t.Tokens[node]) // the text before a draw is that of the path down to its node
		}
		drawn := x.draw(t.Out, t.row(node), base+tandem.Position(t.Depths[node]))
		if x.Sampling.Logprobs {
			a.Logprobs = append(a.Logprobs, x.sampler.Logprob(t.Out.Logits(t.row(node)), drawn, x.Sampling.TopLogprobs))
		}
		return drawn
	})
	x.history.Push(a.Tokens[len(a.Tokens)-1])
	return a
}

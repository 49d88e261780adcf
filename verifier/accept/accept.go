// Package accept decides which nodes of a tree become text, by the target's logits and the options of the session.
package accept

import (
	"errors"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// ErrNoToken is in the error of a text that cannot go on: no token of the vocabulary is allowed by its constraint.
var ErrNoToken = errors.New("the constraint allows no token of the model's vocabulary here")

// Accept accepts the nodes that the target agrees with and appends their tokens and the next one to the text. It fails with Corrupt, and
// the session has to end, if the logits that it needs are no numbers; with Unsupported and ErrNoToken if nothing may follow.
func (x *Text) Accept(t Tree) (a Accepted, err error) {
	stuck := false
	if x.Sampling.Typical() && x.Sampling.Temperature > 0 {
		a, stuck = x.typical(&t)
	} else {
		a, stuck = x.exact(&t)
	}
	for _, node := range append([]int32{0}, a.Path...) {
		if err := t.Out.Sound(t.row(node)); err != nil {
			return Accepted{}, err
		}
	}
	if stuck {
		return Accepted{}, tandem.Errorf("verify", tandem.Unsupported, "at token %d: %w", len(x.Tokens)+len(a.Path), ErrNoToken)
	}
	x.Tokens = append(x.Tokens, a.Tokens...)
	x.Hash = x.Hash.Add(a.Tokens...)
	return a, nil
}

// exact accepts the nodes that the target draws, and advances the history and the constraint. stuck: no token is allowed behind them.
func (x *Text) exact(t *Tree) (a Accepted, stuck bool) {
	base, here := tandem.Position(len(x.Tokens)), x.place()
	a.Path, a.Tokens = spec.Accept(t.Tree, func(node int32) tandem.Token {
		if node > 0 {
			x.history.Push(t.Tokens[node]) // the text before a draw is that of the path down to its node
		}
		drawn, ok := x.draw(t.Out, t.row(node), base+tandem.Position(t.Depths[node]), here)
		if stuck = stuck || !ok; ok {
			here = x.follow(here, drawn)
		}
		if x.Sampling.Logprobs {
			a.Logprobs = append(a.Logprobs, x.sampler.Logprob(t.Out.Logits(t.row(node)), drawn, x.Sampling.TopLogprobs))
		}
		return drawn
	})
	x.history.Push(a.Tokens[len(a.Tokens)-1])
	x.settle(here)
	return a, stuck
}

// settle notes where the constraint stands behind what was accepted.
func (x *Text) settle(here place) {
	if x.limits != nil {
		x.limits.at = here
	}
}

package round

import (
	"math"

	"github.com/tandem-llm/tandem"
)

// WellFormed returns Corrupt unless v has a path of ascending nodes below maxNodes, without the root, and one token more than that, all
// below vocab.
func WellFormed(v tandem.Verdict, maxNodes, vocab int) error {
	if len(v.Tokens) != len(v.Path)+1 {
		return tandem.Errorf(op, tandem.Corrupt, "verdict has %d tokens for a path of %d nodes: want %d", len(v.Tokens), len(v.Path),
			len(v.Path)+1)
	}
	last := int32(0)
	for _, n := range v.Path {
		if n <= last || int(n) >= maxNodes {
			return tandem.Errorf(op, tandem.Corrupt, "verdict accepts node %d after node %d of at most %d", n, last, maxNodes)
		}
		last = n
	}
	for _, t := range v.Tokens {
		if t < 0 || int(t) >= vocab {
			return tandem.Errorf(op, tandem.Corrupt, "verdict has token %d: vocabulary has %d", t, vocab)
		}
	}
	return nil
}

// checkLogprobs checks the log-probabilities of a verdict whose tokens are in order.
func checkLogprobs(v tandem.Verdict, wanted bool, vocab int) error {
	want := 0
	if wanted {
		want = len(v.Tokens)
	}
	if len(v.Logprobs) != want {
		return tandem.Errorf(op, tandem.Corrupt, "verdict has %d log-probabilities: want %d", len(v.Logprobs), want)
	}
	possible := func(x float32) bool { return x <= 0 && x >= -math.MaxFloat32 }
	for _, l := range v.Logprobs {
		if !possible(l.LogProb) {
			return tandem.Errorf(op, tandem.Corrupt, "verdict has log-probability %v: want a number, at most 0", l.LogProb)
		}
		for _, t := range l.Top {
			if t.Token < 0 || int(t.Token) >= vocab || !possible(t.LogProb) {
				return tandem.Errorf(op, tandem.Corrupt, "verdict has log-probability %v of token %d: want at most 0, of %d tokens",
					t.LogProb, t.Token, vocab)
			}
		}
	}
	return nil
}

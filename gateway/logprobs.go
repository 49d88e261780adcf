package gateway

import (
	"math"

	"github.com/tandem-llm/tandem"
)

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

package spec

import (
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Recall keeps a drafter's hindsight of one session while the session grows. The zero value is for an empty session. Not safe for
// concurrent use.
type Recall struct {
	at   int // position after the last one seen
	last tandem.Hindsight
}

// Saw records whether the drafter would have guessed the token at position p. Positions that were seen already are ignored;
// after a gap the hindsight begins anew.
func (r *Recall) Saw(p int, hit bool) {
	switch {
	case p < r.at:
		return
	case p > r.at:
		r.last = tandem.Hindsight{}
	}
	r.at = p + 1
	r.last.Tokens, r.last.Hits = min(r.last.Tokens+1, tandem.MaxHindsight), r.last.Hits<<1
	if hit {
		r.last.Hits |= 1
	}
}

// Keep forgets all but the session's first n tokens.
func (r *Recall) Keep(n int) {
	if n < r.at {
		r.last, r.at = Before(r.last, r.at-n), n
	}
}

// Of returns the hindsight of the session's first n tokens. It is the zero value unless Saw has seen exactly up to the n-th.
func (r *Recall) Of(n int) tandem.Hindsight {
	if n != r.at {
		return tandem.Hindsight{}
	}
	return r.last
}

// Before returns h without its latest n tokens.
func Before(h tandem.Hindsight, n int) tandem.Hindsight {
	return tandem.Hindsight{Tokens: max(h.Tokens-n, 0), Hits: h.Hits >> min(n, tandem.MaxHindsight)}
}

// Foretold replays the text that h knows in rounds, each with a chain of depth tokens, at least one. It returns the weighted mean of the
// accepted tokens of a chain and the sum of the rounds' weights; 0 and 0 without tokens. Newer rounds weigh more, since texts change: one
// of worth.Memory tokens ago weighs half as much as the newest. The latest output tokens of h are the session's output; those before are
// the prompt and weigh less (worth.PromptShare).
func Foretold(h tandem.Hindsight, output, depth int) (accepted, rounds float64) {
	run := 0
	for i := h.Tokens - 1; i >= 0; i-- {
		if h.Hits>>i&1 == 1 {
			if run++; run < depth && (i > 0 || rounds > 0) {
				continue
			}
		}
		w := math.Exp2(-float64(i) / worth.Memory)
		if i >= output {
			w *= worth.PromptShare
		}
		accepted, rounds = accepted+w*float64(run), rounds+w
		if run == depth {
			i-- // the target's own token
		}
		run = 0
	}
	if rounds == 0 {
		return 0, 0
	}
	return accepted / rounds, rounds
}

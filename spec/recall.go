package spec

import (
	"math"

	"github.com/tandem-llm/tandem"
)

// Recall keeps a drafter's hindsight of one session while that grows. The zero value is that of an empty session. Not safe for
// concurrent use.
type Recall struct {
	at   int // the session's first so many tokens have passed
	last tandem.Hindsight
}

// Saw takes what the drafter would have guessed where the token at position p stands. What comes again is passed over; what
// does not follow the position before begins anew.
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

// Of returns the hindsight of the session's first n tokens: nothing unless they are the last that were seen.
func (r *Recall) Of(n int) tandem.Hindsight {
	if n != r.at {
		return tandem.Hindsight{}
	}
	return r.last
}

// Before returns what h says without the latest n tokens.
func Before(h tandem.Hindsight, n int) tandem.Hindsight {
	return tandem.Hindsight{Tokens: max(h.Tokens-n, 0), Hits: h.Hits >> min(n, 64)}
}

// Latest returns what h says of the latest n tokens.
func Latest(h tandem.Hindsight, n int) tandem.Hindsight {
	if n < h.Tokens {
		h = tandem.Hindsight{Tokens: n, Hits: h.Hits & (1<<n - 1)}
	}
	return h
}

const (
	// foretoldDepth is how deep the chains of Foretold are.
	foretoldDepth = 8
	// foretoldFade is the age, in tokens, at which a round counts half of what the newest does.
	foretoldFade = 32
	// foretoldPrompt is what a round in the prompt counts, against one in the output: nobody knows yet what the target makes of it.
	foretoldPrompt = 0.25
)

// Foretold replays a text by h as rounds of chains, each from where the one before has ended, and returns how many tokens of a chain
// were accepted in the mean, and of how many rounds, by weight, that is known; 0 and 0 without tokens. Newer rounds count for more, as
// texts change. The latest output tokens are the session's output; what comes before them, the prompt, counts for less.
func Foretold(h tandem.Hindsight, output int) (accepted, rounds float64) {
	run := 0
	for i := h.Tokens - 1; i >= 0; i-- {
		if h.Hits>>i&1 == 1 {
			if run++; run < foretoldDepth && (i > 0 || rounds > 0) {
				continue
			}
		}
		w := math.Exp2(-float64(i) / foretoldFade)
		if i >= output {
			w *= foretoldPrompt
		}
		accepted, rounds = accepted+w*float64(run), rounds+w
		if run == foretoldDepth {
			i-- // the target's own
		}
		run = 0
	}
	if rounds == 0 {
		return 0, 0
	}
	return accepted / rounds, rounds
}

package spec

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// TestRecall compares Recall with a list of all tokens seen, while tokens come, are repeated, left out and taken back.
func TestRecall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Recall
		var seen []bool // from position first on
		first := 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			at, hit := first+len(seen), rapid.Bool().Draw(t, "hit")
			switch rapid.IntRange(0, 20).Draw(t, "step") {
			case 0: // a gap
				first, seen = at+2, []bool{hit}
				r.Saw(first, hit)
			case 1: // again
				r.Saw(max(at-1-rapid.IntRange(0, 3).Draw(t, "again"), -1), hit)
			case 2: // taken back
				n := max(at-rapid.IntRange(0, 9).Draw(t, "back"), 0)
				r.Keep(n)
				seen = seen[:max(n-first, 0)]
				first = min(first, n)
			default:
				seen = append(seen, hit)
				r.Saw(at, hit)
			}
			n := first + len(seen)
			if got := r.Of(n + 1); got != (tandem.Hindsight{}) {
				t.Fatalf("hindsight of tokens that did not come: %b", got)
			}
			h := r.Of(n)
			if h.Tokens > min(len(seen), tandem.MaxHindsight) || h.Validate() != nil {
				t.Fatalf("%d tokens are known, %d were seen: %v", h.Tokens, len(seen), h.Validate())
			}
			for i := range h.Tokens {
				if h.Hits>>i&1 == 1 != seen[len(seen)-1-i] {
					t.Fatalf("%b of %v", h.Hits, seen)
				}
			}
			cut := rapid.IntRange(0, 70).Draw(t, "cut")
			if before := Before(h, cut); before.Validate() != nil || before.Tokens != max(h.Tokens-cut, 0) {
				t.Fatalf("%b without the latest %d: %b", h, cut, before)
			}
		}
	})
	var r Recall
	for i := range 100 {
		r.Saw(i, i%3 == 0)
	}
	if h := r.Of(100); h.Tokens != 64 || h.Hits != 0x9249249249249249 {
		t.Errorf("%d tokens, hits %#x", h.Tokens, h.Hits)
	}
	if r.Keep(98); r.Of(98).Tokens != 62 {
		t.Errorf("%d tokens are known after two of 64 were taken back", r.Of(98).Tokens)
	}
}

func TestForetold(t *testing.T) {
	for _, c := range []struct {
		depth, tokens    int
		hits             uint64 // the newest token lowest
		accepted, rounds float64
	}{
		{8, 0, 0, 0, 0},
		{8, 1, 0, 0, 1},
		{8, 1, 1, 1, 1},                         // nothing else is known
		{8, 4, 0b1110, 3, 1},                    //
		{8, 5, 0b11101, 3, math.Exp2(-1. / 64)}, // the last round is not over
		{8, 4, 0b0000, 0, 1 + math.Exp2(-1./64) + math.Exp2(-2./64) + math.Exp2(-3./64)},
		{8, 9, 1<<9 - 2, 8, math.Exp2(-1. / 64)}, // eight at most; the next is the target's own, whatever it is
		{8, 10, 1<<10 - 4, 8 * math.Exp2(-2./64) / (math.Exp2(-2./64) + 1), math.Exp2(-2./64) + 1},
		{31, 33, 1<<33 - 4, 31 * math.Exp2(-2./64) / (math.Exp2(-2./64) + 1), math.Exp2(-2./64) + 1}, // a copy
	} {
		h := tandem.Hindsight{Tokens: c.tokens, Hits: c.hits}
		if _, rounds := Foretold(h, 0, c.depth); math.Abs(rounds-c.rounds/10) > 1e-9 {
			t.Errorf("%d tokens of a prompt, hits %b: %v rounds, want %v", c.tokens, c.hits, rounds, c.rounds/10)
		}
		accepted, rounds := Foretold(h, c.tokens, c.depth)
		if math.Abs(accepted-c.accepted) > 1e-9 || math.Abs(rounds-c.rounds) > 1e-9 {
			t.Errorf("%d tokens, hits %b: %v accepted in %v rounds, want %v in %v", c.tokens, c.hits, accepted, rounds, c.accepted,
				c.rounds)
		}
	}
}

package verifier_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestCoupledDrafts: a drafter whose logits are the target's own knows every draw, because both add the same noise; so all that it guesses
// is accepted, at any temperature, with a bias too, and the text is that of plain decoding. Its hindsight says the same of the output.
func TestCoupledDrafts(t *testing.T) {
	const tokens, depth = 36, 5
	twin := plain{openModel(t, targetFile, 1)}
	r := newRig(t, rigOptions{draft: targetFile})
	for i, p := range []tandem.Sampling{
		{Temperature: 1, TopP: 1, Seed: 11},
		{Temperature: 0.6, TopP: 1, Seed: 12},
		{Temperature: 1.5, TopP: 1, Seed: 1 << 63},
		{Temperature: 1, TopP: 1, Seed: 13, Bias: []tandem.Bias{{Token: 40, Add: 4}, {Token: 300, Add: 3}}},
		{TopP: 1, Bias: []tandem.Bias{{Token: 40, Add: 6}}},
	} {
		for _, bounds := range []tandem.Bounds{{Nodes: depth + 1, Depth: depth, Width: 1}, {Nodes: 16, Depth: depth, Width: 4}} {
			t.Run(fmt.Sprintf("%d %v", i, bounds), func(t *testing.T) {
				a := asked{prompt: twin.prompt(prompts[i%len(prompts)]), bounds: bounds, tokens: tokens, sampling: p}
				want := twin.generate(t, a)
				s, err := r.generate(a)
				if err != nil || !slices.Equal(s.text, want) {
					t.Fatalf("%v\n got %v\nwant %v", err, s.text, want)
				}
				if bounds.Width == 1 && s.rounds != tokens/(depth+1) {
					t.Errorf("%d rounds for %d tokens: want %d, each with all of its %d guesses", s.rounds, tokens, tokens/(depth+1), depth)
				}
				if bounds.Width > 1 && s.accepted < tokens/2 {
					t.Errorf("%d of %d tokens were guessed", s.accepted, tokens)
				}
				again := tandem.Opening{Session: tandem.NewSessionID(), Tokens: s.text, Limit: limit, MaxNodes: maxNodes,
					Prompt: len(a.prompt), Sampling: p, Tenant: t.Name()} // which finds nothing in memory: all is computed again
				opened, err := r.d.Open(t.Context(), again)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = r.d.Close(t.Context(), again.Session) }()
				if h := opened.Hindsight; h.Tokens < tokens || ^h.Hits&(1<<tokens-1) != 0 {
					t.Errorf("hindsight of the output: %d tokens, %064b: want the last %d right", h.Tokens, h.Hits, tokens)
				}
			})
		}
	}
}

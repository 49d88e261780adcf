package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/measure"
)

// chainResult is decoding with chains of guesses, of which a share is right. Figures are of all texts together.
type chainResult struct {
	Guesses   int     `json:"guesses"` // of a pass; 0: plain decoding
	Right     float64 `json:"right"`   // the chance of a guess
	TokS      float64 `json:"tok_s"`
	Ratio     float64 `json:"ratio"`                     // to plain decoding
	Predicted float64 `json:"predicted_ratio,omitempty"` // by the times of passes of target and draft, with a draft
	DraftMS   float64 `json:"draft_ms,omitempty"`        // of a guess, alone
	PassMS    float64 `json:"pass_ms"`
	TokenMS   float64 `json:"token_ms"`
	PerPass   float64 `json:"tokens_per_pass"`
	Experts   float64 `json:"experts_per_token,omitempty"`  // used, counted layer by layer
	Missed    float64 `json:"missed_per_token,omitempty"`   // of them, read once they were chosen
	Foretold  float64 `json:"foretold_per_token,omitempty"` // of them, read by a guess
	Guessed   float64 `json:"guessed_per_token,omitempty"`  // read by guesses
	ReadBytes float64 `json:"read_bytes_per_token,omitempty"`
	LimitMS   float64 `json:"limit_ms,omitempty"` // reading them at the rate of direct reads, for a token
	Share     float64 `json:"share,omitempty"`    // limit ÷ time
	WaitMS    float64 `json:"wait_ms,omitempty"`  // of a token's time, for weights
}

// mostGuesses bounds chains.
const mostGuesses = 255

// checkGuessing returns Invalid for impossible chains, in the words of the command line.
func checkGuessing(g measure.Guessing) error {
	for _, n := range g.Chains {
		if n < 1 || n > mostGuesses {
			return tandem.Errorf("", tandem.Invalid, "--chain %d: want 1 to %d guesses", n, mostGuesses)
		}
	}
	if !(g.Right >= 0 && g.Right <= 1) || g.Tokens < 1 || g.Tokens > 4096 || g.Rounds < 1 || g.Rounds > 1000 {
		return tandem.Errorf("", tandem.Invalid,
			"--right %v --tokens %d --texts %d: want a chance from 0 to 1, 1 to 4096 tokens, 1 to 1000 texts", g.Right, g.Tokens, g.Rounds)
	}
	return nil
}

// chains adds decoding with chains, if that is wanted.
func (d Decode) chains(ctx context.Context, m *engine.Model, r *DecodeResult) error {
	if len(d.Guessing.Chains) == 0 {
		return nil
	}
	d.Guessing.Context = d.Context
	draft := time.Duration(0)
	if d.Draft != nil {
		guess, closed, err := d.guesser()
		if err != nil {
			return err
		}
		defer closed()
		if draft, err = figures.MedianTime(ctx, d.Rounds, func() error { return guess(1) }); err != nil {
			return err
		}
		d.Guessing.Guess = guess
	}
	found, err := measure.Chains(ctx, m, d.Guessing)
	if err != nil {
		return err
	}
	for _, c := range found {
		n := float64(c.Tokens)
		took, limit := figures.MS(c.Took), figures.MS(c.Limit)
		r.Chains = append(r.Chains, chainResult{Guesses: c.Guesses, Right: d.Guessing.Right, TokS: n / c.Took.Seconds(),
			PassMS: took / float64(c.Passes), TokenMS: took / n, PerPass: n / float64(c.Passes), Experts: float64(c.Experts) / n,
			Missed: float64(c.Missed) / n, Foretold: float64(c.Foretold) / n, Guessed: float64(c.Guessed) / n,
			ReadBytes: float64(c.Read) / n, LimitMS: limit / n, Share: figures.Share(limit, took), WaitMS: figures.MS(c.Waited) / n})
		last := &r.Chains[len(r.Chains)-1]
		last.Ratio = last.TokS / r.Chains[0].TokS
		if d.Draft != nil && c.Guesses > 0 {
			last.DraftMS = figures.MS(draft)
			last.Predicted = r.predict(c.Guesses, d.Guessing.Right, last.DraftMS)
		}
	}
	return nil
}

// guesser returns a function that runs a pass of the draft for each of n guesses, and one that ends it. Every pass has one row behind the
// same tokens, which is forgotten, so that all cost the same.
func (d Decode) guesser() (guess func(n int) error, closed func(), err error) {
	s, err := d.Draft.NewSequence(d.Context+1, 1)
	if err != nil {
		return nil, nil, err
	}
	for s.Len() < d.Context {
		piece := make([]tandem.Token, min(d.Draft.MaxRows(), d.Context-s.Len()))
		if _, err := d.Draft.Forward([]engine.Part{{Seq: s, Extend: piece}}, 0); err != nil {
			s.Close()
			return nil, nil, err
		}
	}
	row := []engine.Part{{Seq: s, Nodes: []tandem.Token{0}, Parents: []int32{-1}, Want: engine.WantTail}}
	return func(n int) error {
		for range n {
			if _, err := d.Draft.Forward(row, 1); err != nil {
				return err
			}
			if err := s.Commit(nil); err != nil {
				return err
			}
		}
		return nil
	}, s.Close, nil
}

// predict returns the expected ratio to plain decoding with chains of n guesses, each right with a chance and taking so many milliseconds:
// tokens of a pass over its time. 0 if passes of that width were not timed.
func (r *DecodeResult) predict(n int, right, draftMS float64) float64 {
	pass := func(width int) float64 {
		for _, p := range r.Passes {
			if p.Width == width && !p.Prefill {
				return p.MedianMS
			}
		}
		return 0
	}
	tokens, chance := 0.0, 1.0
	for range n + 1 {
		tokens, chance = tokens+chance, chance*right
	}
	if pass(1) == 0 || pass(n+1) == 0 {
		return 0
	}
	return tokens * pass(1) / (pass(n+1) + float64(n)*draftMS)
}

// printChains writes decoding with chains as text.
func (r *DecodeResult) printChains(to io.Writer) error {
	if len(r.Chains) == 0 {
		return nil
	}
	fmt.Fprintf(to, "\ndecoding, without and with chains of guesses, each right with a chance of %.2f; the texts are equal\n",
		r.Chains[0].Right)
	t := figures.NewTable(to, "%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f")
	t.Head("guesses", "tokens/s", "ratio", "predicted", "pass ms", "tokens a pass", "token ms", "experts", "missed", "foretold", "guessed",
		"MiB read",
		"limit ms", "share", "waiting ms")
	for _, c := range r.Chains {
		name := "none"
		if c.Guesses > 0 {
			name = fmt.Sprint(c.Guesses)
		}
		t.Row(name, c.TokS, c.Ratio, c.Predicted, c.PassMS, c.PerPass, c.TokenMS, c.Experts, c.Missed, c.Foretold, c.Guessed,
			c.ReadBytes/(1<<20), c.LimitMS, c.Share, c.WaitMS)
	}
	return t.Flush()
}

// widestChain returns the rows of the widest pass with a chain; 0: none.
func (d Decode) widestChain() int {
	if len(d.Guessing.Chains) == 0 {
		return 0
	}
	return 1 + slices.Max(d.Guessing.Chains)
}

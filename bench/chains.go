package bench

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/bench/figures"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/measure"
)

// chainResult is decoding with chains of guesses, of which a share is right. Figures are of all texts together.
type chainResult struct {
	Guesses   int     `json:"guesses"` // of a pass; 0: plain decoding
	Right     float64 `json:"right"`   // the chance of a guess
	TokS      float64 `json:"tok_s"`
	Ratio     float64 `json:"ratio"` // to plain decoding
	PassMS    float64 `json:"pass_ms"`
	TokenMS   float64 `json:"token_ms"`
	PerPass   float64 `json:"tokens_per_pass"`
	Experts   float64 `json:"experts_per_token,omitempty"` // used, counted layer by layer
	Missed    float64 `json:"missed_per_token,omitempty"`  // of them, read
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
	found, err := measure.Chains(ctx, m, d.Guessing)
	if err != nil {
		return err
	}
	for _, c := range found {
		n := float64(c.Tokens)
		took, limit := figures.MS(c.Took), figures.MS(c.Limit)
		r.Chains = append(r.Chains, chainResult{Guesses: c.Guesses, Right: d.Guessing.Right, TokS: n / c.Took.Seconds(),
			PassMS: took / float64(c.Passes), TokenMS: took / n, PerPass: n / float64(c.Passes), Experts: float64(c.Experts) / n,
			Missed: float64(c.Missed) / n, ReadBytes: float64(c.Read) / n, LimitMS: limit / n, Share: figures.Share(limit, took),
			WaitMS: figures.MS(c.Waited) / n})
		r.Chains[len(r.Chains)-1].Ratio = r.Chains[len(r.Chains)-1].TokS / r.Chains[0].TokS
	}
	return nil
}

// printChains writes decoding with chains as text.
func (r *DecodeResult) printChains(to io.Writer) error {
	if len(r.Chains) == 0 {
		return nil
	}
	fmt.Fprintf(to, "\ndecoding, without and with chains of guesses, each right with a chance of %.2f; the texts are equal\n",
		r.Chains[0].Right)
	t := figures.NewTable(to, "%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f")
	t.Head("guesses", "tokens/s", "ratio", "pass ms", "tokens a pass", "token ms", "experts", "missed", "MiB read", "limit ms", "share",
		"waiting ms")
	for _, c := range r.Chains {
		name := "none"
		if c.Guesses > 0 {
			name = fmt.Sprint(c.Guesses)
		}
		t.Row(name, c.TokS, c.Ratio, c.PassMS, c.PerPass, c.TokenMS, c.Experts, c.Missed, c.ReadBytes/(1<<20), c.LimitMS, c.Share, c.WaitMS)
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

// Package demo shows what speculation does: it continues one prompt plainly and with speculation, one after the other so that
// neither takes the other's processors, shows both texts, and compares them.
//
// It knows no process and no terminal: a Decoder continues the prompt, a View shows the text.
package demo

import (
	"context"
	"fmt"

	"github.com/tandem-llm/tandem"
)

// Way is a way of decoding.
type Way int

const (
	Plain       Way = iota // one pass of the target for each token
	Speculative            // passes check what drafters have guessed
	ways
)

func (w Way) String() string { return [...]string{"plain decoding", "with speculation"}[w] }

// Origin says who a piece of text is from.
type Origin int

const (
	FromPrompt Origin = iota // given
	FromTarget               // chosen by the target itself
	FromDraft                // guessed by a drafter, and accepted
)

// Piece is a bit of text, such as a token's.
type Piece struct {
	Text string
	From Origin
}

// Generation is the result of one way.
type Generation struct {
	Text            string         `json:"text"`
	Tokens          []tandem.Token `json:"tokens"`
	TokensPerSecond float64        `json:"tokens_per_second"` // of decoding, without the prompt
	TokensPerRound  float64        `json:"tokens_per_round"`  // a round is one pass of the target
	Rounds          int            `json:"rounds"`
	Drafted         int            `json:"drafted"`
	Accepted        int            `json:"accepted"`
	DecodeMS        float64        `json:"decode_ms"`
}

// Decoder continues the demo's prompt by at most that many tokens. It passes each piece of text to show, and returns show's error at once.
type Decoder func(ctx context.Context, way Way, tokens int, show func(Piece) error) (Generation, error)

// View shows a demo. Its methods are called in this order: for each way Begin, any number of Show, and End; then Finish.
type View interface {
	Begin(way Way) error    // of a way
	Show(p Piece) error     // the next piece of its text
	End(g Generation) error // of the way: its whole text and its figures
	Finish(r *Result) error // with both ways compared
}

// Result is the result of a demo.
type Result struct {
	Target      string     `json:"target"`
	Drafts      []string   `json:"drafts"`
	Prompt      string     `json:"prompt"`
	Plain       Generation `json:"plain"`
	Speculative Generation `json:"speculative"`
	Speedup     float64    `json:"speedup"` // of tokens per second
	Equal       bool       `json:"ids_equal"`
	Difference  string     `json:"difference,omitempty"` // where they differ
}

// warmUp is how many tokens are decoded before anything is measured, since the first passes touch unused memory. They are
// decoded plainly, so that the measured run does not start with knowledge of the drafters.
const warmUp = 4

// Run decodes both ways, each by at most tokens tokens after r.Prompt, shows them on view and fills in r. Errors: those of decode and view;
// Internal, after everything is shown, if the two ways have different tokens.
func (r *Result) Run(ctx context.Context, decode Decoder, tokens int, view View) error {
	if _, err := decode(ctx, Plain, min(warmUp, tokens), func(Piece) error { return nil }); err != nil {
		return err
	}
	for way := range ways {
		if err := view.Begin(way); err != nil {
			return err
		}
		if err := view.Show(Piece{r.Prompt, FromPrompt}); err != nil {
			return err
		}
		g, err := decode(ctx, way, tokens, view.Show)
		if err != nil {
			return err
		}
		if err := view.End(g); err != nil {
			return err
		}
		if way == Plain {
			r.Plain = g
		} else {
			r.Speculative = g
		}
	}
	if r.Plain.TokensPerSecond > 0 {
		r.Speedup = r.Speculative.TokensPerSecond / r.Plain.TokensPerSecond
	}
	r.Difference = difference(r.Plain, r.Speculative)
	r.Equal = r.Difference == ""
	if err := view.Finish(r); err != nil {
		return err
	}
	if !r.Equal {
		return tandem.Errorf("demo", tandem.Internal, "speculation changed the text, which it must never do: %s", r.Difference)
	}
	return nil
}

// difference says where two generations differ, "" for nowhere.
func difference(plain, spec Generation) string {
	for i := range max(len(plain.Tokens), len(spec.Tokens)) {
		if i >= len(plain.Tokens) || i >= len(spec.Tokens) {
			return fmt.Sprintf("plain decoding gave %d tokens, speculation %d", len(plain.Tokens), len(spec.Tokens))
		}
		if plain.Tokens[i] != spec.Tokens[i] {
			return fmt.Sprintf("token %d is %d by plain decoding and %d with speculation", i+1, plain.Tokens[i], spec.Tokens[i])
		}
	}
	if plain.Text != spec.Text {
		return "the token ids are equal, but the text is not"
	}
	return ""
}

// Summary returns the last lines of a demo: both speeds, tokens per round, and whether the ids are equal.
func (r *Result) Summary() []string {
	line := func(way Way, g Generation, more string) string {
		return fmt.Sprintf("%-16s %7.1f tokens/s  %5.2f tokens per round%s", way, g.TokensPerSecond, g.TokensPerRound, more)
	}
	lines := []string{
		line(Plain, r.Plain, ""),
		line(Speculative, r.Speculative, fmt.Sprintf("   %.2f times as fast", r.Speedup)),
	}
	if !r.Equal {
		return append(lines, "ids NOT EQUAL: "+r.Difference)
	}
	return append(lines, fmt.Sprintf("ids equal: all %d tokens, of which %d were guessed by a draft model", len(r.Plain.Tokens),
		r.Speculative.Accepted))
}

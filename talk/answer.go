package talk

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
)

// Client is the part of a client.Client that is needed.
type Client interface {
	Generate(ctx context.Context, r client.Request) iter.Seq2[client.Event, error]
	Detokenize(ctx context.Context, tokens []uint32) (string, error)
}

// Answer is one generation as its client saw it.
type Answer struct {
	Request  tandem.Request
	Text     string
	Prompt   []tandem.Token
	Identity string // of the verifier that computed the text
	Tokens   []tandem.Token
	Logprobs []client.Logprob // one per token if the request wants them
	First    time.Duration    // from the call to the first token; 0 if there was none
	Rounds   []client.Round   // of a request that reports them
	Whole    bool             // it was not stopped, and Finished is valid
	Finished client.Finished
}

// Generate runs r, hands each piece to show, and returns the whole answer; with an error it returns what has come. An error of
// show ends the generation.
func Generate(ctx context.Context, c Client, r tandem.Request, show func(*client.Delta) error) (*Answer, error) {
	out := &Answer{Request: r, Tokens: []tandem.Token{}}
	var text strings.Builder
	defer func() { out.Text = text.String() }()
	begun := time.Now()
	for event, err := range c.Generate(ctx, Wire(r)) {
		switch {
		case err != nil:
			return out, Error(err)
		case event.Started != nil:
			out.Prompt, out.Identity = Tokens(event.Started.PromptTokens), event.Started.Identity
		case event.Delta != nil:
			d := event.Delta
			if out.First == 0 {
				out.First = time.Since(begun)
			}
			out.Tokens = append(out.Tokens, Tokens(d.Tokens)...)
			if d.Round != nil {
				out.Rounds = append(out.Rounds, *d.Round)
			}
			out.Logprobs = append(out.Logprobs, d.Logprobs...)
			text.WriteString(d.Text)
			if err := show(d); err != nil {
				return out, err
			}
		case event.Finished != nil:
			out.Finished, out.Whole = *event.Finished, true
		}
	}
	return out, nil
}

// Difference says where answers differ in ids or text, "" if they are equal.
func Difference(answers []*Answer) string {
	a := answers[0]
	for _, b := range answers[1:] {
		for i := range max(len(a.Tokens), len(b.Tokens)) {
			if i >= len(a.Tokens) || i >= len(b.Tokens) {
				return fmt.Sprintf("one run has %d tokens, another %d", len(a.Tokens), len(b.Tokens))
			}
			if a.Tokens[i] != b.Tokens[i] {
				return fmt.Sprintf("token %d is %d in one run and %d in another", i+1, a.Tokens[i], b.Tokens[i])
			}
		}
		if a.Text != b.Text {
			return "the token ids are equal, but the text is not"
		}
	}
	return ""
}

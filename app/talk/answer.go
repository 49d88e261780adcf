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

// Client is the part of client.Client that this package uses.
type Client interface {
	// Generate continues a prompt. An error comes once, as the last of the sequence.
	Generate(ctx context.Context, r client.Request) iter.Seq2[client.Event, error]
	// Converse continues a conversation, with the template's variables as JSON, "" for none. Errors as of Generate.
	Converse(ctx context.Context, messages []client.Message, variables string, r client.Request) iter.Seq2[client.Piece, error]
	// Detokenize returns the text of tokens.
	Detokenize(ctx context.Context, tokens []uint32) (string, error)
}

// Answer is one generation as its client saw it.
type Answer struct {
	Request  tandem.Request // what was asked for; in a conversation, Tokens are its prompt
	Text     string         // as the model wrote it; in a conversation control tokens may be written out
	Said     string         // in a conversation: the text without thoughts
	Thought  string         // in a conversation: what the model thought before
	Limit    int            // most tokens that the gateway allowed it: the context bounds it too
	Prompt   []tandem.Token
	Identity string // of the verifier that computed the text
	Tokens   []tandem.Token
	Logprobs []client.Logprob // one per token if the request wants them
	First    time.Duration    // from the call to the first token; 0 if there was none
	Rounds   []client.Round   // of a request that reports them
	Whole    bool             // it was not stopped, and Finished is valid
	Finished client.Finished
}

// Reading is told how far a prompt has been read, and nil once it has been, or nothing more will be told. A nil Reading is told nothing.
type Reading func(*client.PromptProgress)

// Generate runs r, calls show with each piece, and returns the whole answer; never nil: with an error it holds what has come. An error
// of show ends the generation and is returned.
func Generate(ctx context.Context, c Client, r tandem.Request, reading Reading, show func(*client.Delta) error) (*Answer, error) {
	r.Progress = reading != nil
	out := newListener(r, reading)
	defer out.end()
	for event, err := range c.Generate(ctx, Wire(r)) {
		if err != nil {
			return out.Answer, Error(err)
		}
		out.hear(event)
		if event.Delta == nil {
			continue
		}
		if err := show(event.Delta); err != nil {
			return out.Answer, err
		}
	}
	return out.Answer, nil
}

// Shown is a piece of an answer in a conversation.
type Shown struct {
	client.Delta      // Text: what is said or thought; Tokens and Drafted: what the model wrote last, which may end later than Text does
	Thought      bool // it is a thought
}

// Chat is Generate for the next answer of a conversation. r's prompt is not used. variables are as client.Converse takes them.
func Chat(ctx context.Context, c Client, messages []client.Message, variables string, r tandem.Request, reading Reading,
	show func(*Shown) error) (*Answer, error) {
	r.Progress = reading != nil
	w := Wire(r)
	w.Report = true // tells tokens, and who guessed them
	out := newListener(r, reading)
	defer out.end()
	var said, thought strings.Builder
	defer func() { out.Said, out.Thought = said.String(), thought.String() }()
	var now client.Delta
	for p, err := range c.Converse(ctx, messages, variables, w) {
		if err != nil {
			return out.Answer, Error(err)
		}
		out.hear(p.Event)
		if p.Delta != nil {
			now = *p.Delta
		}
		said.WriteString(p.Text)
		thought.WriteString(p.Thought)
		if now.Text = p.Text + p.Thought; now.Text == "" {
			continue
		}
		if err := show(&Shown{now, p.Thought != ""}); err != nil {
			return out.Answer, err
		}
	}
	return out.Answer, nil
}

// listener puts an answer together from its events.
type listener struct {
	*Answer
	text    strings.Builder
	begun   time.Time
	reading Reading // nil: it is told nothing more
}

func newListener(r tandem.Request, reading Reading) *listener {
	return &listener{Answer: &Answer{Request: r, Tokens: []tandem.Token{}}, begun: time.Now(), reading: reading}
}

// hear takes one event.
func (l *listener) hear(e client.Event) {
	switch out := l.Answer; {
	case e.Progress != nil && l.reading != nil:
		l.reading(e.Progress)
	case e.Started != nil:
		l.read()
		out.Prompt, out.Identity, out.Limit = Tokens(e.Started.PromptTokens), e.Started.Identity, e.Started.MaxTokens
	case e.Delta != nil:
		d := e.Delta
		if out.First == 0 {
			out.First = time.Since(l.begun)
		}
		out.Tokens = append(out.Tokens, Tokens(d.Tokens)...)
		if d.Round != nil {
			out.Rounds = append(out.Rounds, *d.Round)
		}
		out.Logprobs = append(out.Logprobs, d.Logprobs...)
		l.text.WriteString(d.Text)
	case e.Finished != nil:
		out.Finished, out.Whole = *e.Finished, true
	}
}

// read says that the prompt has been read, or will not be.
func (l *listener) read() {
	if l.reading != nil {
		l.reading(nil)
		l.reading = nil
	}
}

// end completes the answer.
func (l *listener) end() {
	l.read()
	l.Text = l.text.String()
}

// Difference says where one of the answers, at least one, first differs from the first in ids or text; "" if all are equal.
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

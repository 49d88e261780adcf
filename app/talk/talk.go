// Package talk is a client of a gateway: single answers, conversations, and the same answer with and without speculation.
// It displays nothing.
package talk

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
)

// Conversation holds what has been said so far. One goroutine at a time may use it.
type Conversation struct {
	Client    Client
	Chat      bool                                        // the gateway's chat service answers; else text is continued
	Variables string                                      // of the chat template, as client.Converse takes them
	Request   func(prompt string) (tandem.Request, error) // the request for a prompt with the options now in effect, validated
	Reading   Reading                                     // of each message to the model; may be nil
	Last      *Answer                                     // the latest; nil before there is one

	messages []client.Message  // with Chat
	text     string            // without
	words    map[uint32]string // of tokens, as the gateway writes them
}

// Clear forgets what was said, but not the system message. Last stays.
func (t *Conversation) Clear() {
	system := t.SystemText()
	if t.messages, t.text = nil, ""; system != "" {
		t.messages = []client.Message{{Role: "system", Content: system}}
	}
}

// Say adds said and the answer to the conversation. It calls show with each piece of the answer; an error of show ends it. If tokens have
// come before an error, they stay as the answer and are returned with the error; if none have, Say returns nil and takes said back.
func (t *Conversation) Say(ctx context.Context, said string, show func(*Shown) error) (answer *Answer, err error) {
	messages, text := t.messages, t.text
	if t.Chat {
		answer, err = t.converse(ctx, said, show)
	} else {
		answer, err = t.goOn(ctx, said, show)
	}
	if err != nil && (answer == nil || len(answer.Tokens) == 0) {
		t.messages, t.text = messages, text
		return nil, err
	}
	t.Last = answer
	return answer, err
}

// goOn adds said to the text and has it continued.
func (t *Conversation) goOn(ctx context.Context, said string, show func(*Shown) error) (*Answer, error) {
	if t.text != "" && !strings.HasSuffix(t.text, "\n") {
		t.text += "\n"
	}
	t.text += said
	r, err := t.Request(t.text)
	if err != nil {
		return nil, err
	}
	answer, err := Generate(ctx, t.Client, r, t.Reading, func(d *client.Delta) error { return show(&Shown{Delta: *d}) })
	t.text += answer.Text
	return answer, err
}

// converse says the user's next turn and has it answered.
func (t *Conversation) converse(ctx context.Context, said string, show func(*Shown) error) (*Answer, error) {
	r, err := t.Request("x") // which is not used: the gateway makes the prompt
	if err != nil {
		return nil, err
	}
	t.messages = append(slices.Clip(t.messages), client.Message{Role: "user", Content: said})
	answer, err := Chat(ctx, t.Client, t.messages, t.Variables, r, t.Reading, show)
	answer.Request.Prompt, answer.Request.Tokens = "", answer.Prompt
	t.messages = append(t.messages, client.Message{Role: "assistant", Content: answer.Said, Thought: answer.Thought})
	return answer, err
}

// Word returns the text of a token; "" if the gateway does not answer. It asks once for each token.
func (t *Conversation) Word(ctx context.Context, token uint32) string {
	if word, known := t.words[token]; known {
		return word
	}
	if t.words == nil {
		t.words = map[uint32]string{}
	}
	word, err := t.Client.Detokenize(ctx, []uint32{token})
	if err != nil {
		return ""
	}
	t.words[token] = word
	return word
}

// Comparison is the latest request, repeated with and without speculation.
type Comparison struct {
	Tokens, Runs int           // tokens of a run; runs whose texts were compared, the latest answer perhaps among them
	With, Plain  time.Duration // decoding time, each of the faster run: other load can only make a run slower
	Differ       string        // where runs differ, "" for nowhere
	Lossy        bool          // drafts were accepted by typical acceptance, so runs may differ
}

// Runs is how often Compare repeats the request.
const Runs = 4

// Compare repeats the latest request with and without speculation, in turn, and compares. It calls step with the number of the run
// that begins, 1 to Runs. Each run has a cache salt of its own, so that it takes as long as a first answer. If the latest request did not
// speculate, speculate sets the current options of speculation in it. Errors: Invalid before anything was asked; speculate's, and the
// gateway's.
func (t *Conversation) Compare(ctx context.Context, speculate func(*tandem.Request) error, step func(run int)) (out Comparison, err error) {
	if t.Last == nil {
		return out, tandem.Errorf("", tandem.Invalid, "nothing was asked yet")
	}
	with := t.Last.Request
	if with.Bounds.Plain() {
		if err := speculate(&with); err != nil {
			return out, err
		}
	}
	plain := with
	plain.Bounds = tandem.Bounds{}
	plain.Sampling.Accept, plain.Sampling.Epsilon, plain.Sampling.Delta = tandem.AcceptExact, 0, 0
	out.Lossy = with.Sampling.Typical()
	var runs []*Answer
	for i, faster := range []*time.Duration{&out.With, &out.Plain, &out.Plain, &out.With} { // so that neither is always first
		r := plain
		if faster == &out.With {
			r = with
		}
		r.CacheSalt = rand.Text() // else it would draft from the answer of the run before
		step(i + 1)
		run, err := Generate(ctx, t.Client, r, nil, func(*client.Delta) error { return nil })
		if err != nil {
			return out, err
		}
		runs = append(runs, run)
		if d := run.Finished.Statistics.Decode; *faster == 0 || d < *faster {
			*faster = d
		}
	}
	out.Tokens = len(runs[0].Tokens)
	if t.Last.Whole {
		last := *t.Last
		if t.Chat { // written control tokens may be in its text: ids alone are compared
			last.Text = runs[0].Text
		}
		runs = append(runs, &last)
	}
	out.Runs, out.Differ = len(runs), Difference(runs)
	return out, nil
}

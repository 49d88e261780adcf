package clients

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi"
)

const (
	context1 = 64                // positions of a session of serve
	bos      = tandem.Token(256) // the beginning of a text
)

// generator is what serve answers with, in place of a model.
type generator func(context.Context, tandem.Request, tandem.Sink) (tandem.Result, error)

func (g generator) Generate(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	return g(ctx, r, s)
}

// hello says "hello " again and again, a token for each byte. The seed says where it begins.
func hello(_ context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	res := tandem.Result{Finish: tandem.FinishLength, PromptTokens: len(r.Tokens), CachedTokens: 1}
	err := s.Started(tandem.Started{PromptTokens: r.Tokens, Request: r})
	for i := 0; err == nil && i < min(r.MaxTokens, context1-len(r.Tokens)); i++ {
		c := "hello "[(uint64(i)+r.Sampling.Seed)%6]
		d := tandem.Delta{Text: string(c), Tokens: []tandem.Token{tandem.Token(c)}, Origins: []tandem.Origin{0}}
		if r.Sampling.Logprobs {
			p := tandem.Logprob{LogProb: -0.5}
			for k := range r.Sampling.TopLogprobs {
				p.Top = append(p.Top, tandem.TopLogprob{Token: d.Tokens[0] + tandem.Token(k), LogProb: -0.5 - float32(k)})
			}
			d.Logprobs = []tandem.Logprob{p}
		}
		err = s.Delta(d)
		res.OutputTokens++
	}
	return res, err
}

// letters are a vocabulary of bytes and bos. It has what these tests need; the rest is nil.
type letters struct{ httpapi.Vocab }

func (letters) Encode(text string, special bool) (out []tandem.Token) {
	if special {
		out = append(out, bos)
	}
	for _, b := range []byte(text) {
		out = append(out, tandem.Token(b))
	}
	return out
}

func (v letters) EncodeWithControl(text string, special bool) []tandem.Token {
	return v.Encode(text, special)
}

func (letters) AtLeast(text string) int { return len(text) }

func (letters) AppendBytes(dst []byte, t tandem.Token) []byte {
	if t == bos {
		return dst
	}
	return append(dst, byte(t))
}

func (v letters) AppendWritten(dst []byte, t tandem.Token) []byte { return v.AppendBytes(dst, t) }

func (v letters) Texts(...tandem.Token) func(tandem.Token) string {
	return func(t tandem.Token) string { return string(v.AppendBytes(nil, t)) }
}

// lines is a template that puts each message on a line of its own.
type lines struct{}

func (lines) Reads(string) bool { return false }

func (lines) Prompt(_ context.Context, of conversation.Conversation) (conversation.Prompt, error) {
	var b strings.Builder
	for _, m := range of.Messages {
		fmt.Fprintf(&b, "%s: %s\n", m.Role, m.Content)
	}
	return conversation.Prompt{Text: b.String(), Tokens: func() []tandem.Token { return letters{}.Encode(b.String(), true) }}, nil
}

// serve answers with a generator from this process until the test ends, and returns the URL. A request without a limit has five tokens.
func serve(t *testing.T, g generator, change func(*httpapi.Config)) string {
	t.Helper()
	c := httpapi.Config{Listen: "127.0.0.1:0", Generator: g, Vocab: letters{}, Chat: lines{},
		Model:  httpapi.Model{Name: "gopher", Created: time.Unix(1700000000, 0)},
		Limits: tandem.Limits{Context: context1, Vocab: 300}}
	c.Defaults.MaxTokens, c.Defaults.Sampling.TopP, c.Defaults.Strategy = 5, 1, tandem.StrategyPlanner
	c.Defaults.Bounds = tandem.Bounds{Nodes: 16, Depth: 7, Width: 10}
	if change != nil {
		change(&c)
	}
	s, err := httpapi.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s.URL()
}

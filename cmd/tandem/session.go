package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
)

// outcome is one generation as its client saw it.
type outcome struct {
	text     strings.Builder
	prompt   []tandem.Token
	tokens   []tandem.Token
	logprobs []logprob      // one per token if the request wants them
	first    time.Duration  // from the call to the first token
	rounds   []client.Round // of a request that reports them
	finished client.Finished
}

// collect runs r on a gateway, hands each piece of text to show, and returns the whole.
func collect(ctx context.Context, c *client.Client, r tandem.Request, show func(text string) error) (*outcome, error) {
	out := &outcome{tokens: []tandem.Token{}}
	start := time.Now()
	for event, err := range c.Generate(ctx, wireRequest(r)) {
		switch {
		case err != nil:
			return out, fromClient(err)
		case event.Started != nil:
			out.prompt = fromIDs(event.Started.PromptTokens)
		case event.Delta != nil:
			if out.first == 0 {
				out.first = time.Since(start)
			}
			out.tokens = append(out.tokens, fromIDs(event.Delta.Tokens)...)
			if r := event.Delta.Round; r != nil {
				out.rounds = append(out.rounds, *r)
			}
			out.logprobs = append(out.logprobs, fromLogprobs(event.Delta.Logprobs)...)
			out.text.WriteString(event.Delta.Text)
			if err := show(event.Delta.Text); err != nil {
				return out, err
			}
		case event.Finished != nil:
			out.finished = *event.Finished
		}
	}
	return out, nil
}

// generate runs r on the gateway at addr and prints the result.
func (c *generateCmd) generate(ctx context.Context, a *app, addr string, r tandem.Request) error {
	options, err := c.dialing(addr)
	if err != nil {
		return err
	}
	if c.Addr != "" && len(c.APIKey) > 0 {
		options = append(options, client.WithToken(c.APIKey[0]))
	}
	conn, err := client.Dial(addr, options...)
	if err != nil {
		return fromClient(err)
	}
	defer conn.Close()
	show := func(text string) error {
		if c.JSON {
			return nil
		}
		_, err := a.stdout.Write([]byte(text))
		return err
	}
	out, err := collect(ctx, conn, r, show)
	if !c.JSON {
		endLine(a, out.text.String())
	}
	if err != nil {
		return err
	}
	if c.seen != nil {
		if err := c.seen(out); err != nil {
			return err
		}
	}
	stats := summarise(out.finished.Statistics, len(out.tokens), out.first)
	if c.JSON {
		return printJSON(a.stdout, generation{Text: out.text.String(), Tokens: out.tokens, PromptTokens: out.finished.PromptTokens,
			PromptTokenIDs: out.prompt, CachedTokens: out.finished.CachedPromptTokens, Logprobs: out.logprobs,
			FinishReason: out.finished.Reason, Stopped: out.finished.Stopped, Stats: stats})
	}
	_, err = a.stderr.Write([]byte(stats.line(len(out.tokens)) + "\n"))
	return err
}

// wireRequest turns a validated request into the client's form, every field set.
func wireRequest(r tandem.Request) client.Request {
	w := client.Request{
		Prompt: r.Prompt, MaxTokens: &r.MaxTokens, IgnoreEOS: r.IgnoreEOS, FullTrace: r.FullTrace, NoDraft: r.Bounds.Plain(),
		Temperature: &r.Sampling.Temperature, TopK: &r.Sampling.TopK, TopP: &r.Sampling.TopP, MinP: &r.Sampling.MinP, Seed: &r.Sampling.Seed,
		RepeatPenalty: &r.Sampling.RepeatPenalty, RepeatLast: &r.Sampling.RepeatLast, FrequencyPenalty: &r.Sampling.FrequencyPenalty,
		PresencePenalty: &r.Sampling.PresencePenalty, LogitBias: fromBias(r.Sampling.Bias), Logprobs: r.Sampling.Logprobs,
		TopLogprobs: r.Sampling.TopLogprobs, Stop: r.Stop, Report: r.Report,
	}
	if !w.NoDraft {
		w.Tree = &client.Tree{Nodes: r.Bounds.Nodes, Depth: r.Bounds.Depth, Width: r.Bounds.Width}
		w.Strategy, w.Vote, w.Drafters, w.Without = string(r.Strategy), string(r.Vote), r.Drafters, r.Without.Names()
	}
	return w
}

// fromClient gives an error of the gateway its kind, which decides the exit code.
func fromClient(err error) error {
	var e *client.Error
	if !errors.As(err, &e) {
		return err
	}
	kind := tandem.Unavailable
	if e.Kind == client.Invalid {
		kind = tandem.Invalid
	}
	return tandem.Errorf("", kind, "%s", e.Message)
}

func fromIDs(ids []uint32) []tandem.Token {
	tokens := make([]tandem.Token, len(ids))
	for i, id := range ids {
		tokens[i] = tandem.Token(id)
	}
	return tokens
}

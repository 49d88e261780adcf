package talk

import (
	"errors"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
)

// Wire turns a validated request into the client's form, every field set.
func Wire(r tandem.Request) client.Request {
	w := client.Request{
		Prompt: r.Prompt, MaxTokens: &r.MaxTokens, IgnoreEOS: r.IgnoreEOS, FullTrace: r.FullTrace, NoDraft: r.Bounds.Plain(),
		Temperature: &r.Sampling.Temperature, TopK: &r.Sampling.TopK, TopP: &r.Sampling.TopP, MinP: &r.Sampling.MinP,
		Seed:          &r.Sampling.Seed,
		RepeatPenalty: &r.Sampling.RepeatPenalty, RepeatLast: &r.Sampling.RepeatLast, FrequencyPenalty: &r.Sampling.FrequencyPenalty,
		PresencePenalty: &r.Sampling.PresencePenalty, LogitBias: fromBias(r.Sampling.Bias), Logprobs: r.Sampling.Logprobs,
		TopLogprobs: r.Sampling.TopLogprobs, Stop: r.Stop, Report: r.Report, Progress: r.Progress, CacheSalt: r.CacheSalt,
		Accept: string(r.Sampling.Accept), AcceptEpsilon: &r.Sampling.Epsilon, AcceptDelta: &r.Sampling.Delta,
	}
	for _, t := range r.Tokens {
		w.Tokens = append(w.Tokens, uint32(t))
	}
	if !w.NoDraft {
		w.Tree = &client.Tree{Nodes: r.Bounds.Nodes, Depth: r.Bounds.Depth, Width: r.Bounds.Width}
		w.Strategy, w.Vote, w.Drafters, w.Without = string(r.Strategy), string(r.Vote), r.Drafters, r.Without.Names()
	}
	return w
}

// Result turns the end of a generation from the client's form into package tandem's.
func Result(f client.Finished) tandem.Result {
	return tandem.Result{Finish: tandem.FinishReason(f.Reason), Stopped: f.Stopped, Repeated: f.RepeatedPiece, PromptTokens: f.PromptTokens,
		CachedTokens: f.CachedPromptTokens, OutputTokens: f.OutputTokens, Stats: tandem.Stats(f.Statistics)}
}

// Error returns a gateway's error as Invalid or Unavailable of package tandem, which decides the exit code. Other errors stay as they are.
func Error(err error) error {
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

// Tokens turns ids from the client's form into package tandem's.
func Tokens(ids []uint32) []tandem.Token {
	tokens := make([]tandem.Token, len(ids))
	for i, id := range ids {
		tokens[i] = tandem.Token(id)
	}
	return tokens
}

// fromBias is a bias in the client's form.
func fromBias(list []tandem.Bias) map[uint32]float32 {
	if len(list) == 0 {
		return nil
	}
	out := make(map[uint32]float32, len(list))
	for _, b := range list {
		out[uint32(b.Token)] = b.Add
	}
	return out
}

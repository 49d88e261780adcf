package talk

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// Generation is an answer as --json prints it.
type Generation struct {
	Text           string         `json:"text"`
	Tokens         []tandem.Token `json:"tokens"`
	PromptTokens   int            `json:"prompt_tokens"`
	PromptTokenIDs []tandem.Token `json:"prompt_token_ids"`
	CachedTokens   int            `json:"cached_prompt_tokens"` // found in the verifier's memory
	Logprobs       []Logprob      `json:"logprobs,omitempty"`   // of --logprobs: one per token
	FinishReason   string         `json:"finish_reason"`
	Stopped        string         `json:"stopped,omitempty"` // the stop sequence that ended it
	Identity       string         `json:"identity"`          // of what computed the text
	Stats          oai.Stats      `json:"stats"`
}

// NewGeneration returns answer a as --json prints it. a must be Whole.
func NewGeneration(a *Answer) Generation {
	f := a.Finished
	return Generation{Text: a.Text, Tokens: a.Tokens, PromptTokens: f.PromptTokens, PromptTokenIDs: a.Prompt, Identity: a.Identity,
		CachedTokens: f.CachedPromptTokens, Logprobs: fromLogprobs(a.Logprobs), FinishReason: f.Reason, Stopped: f.Stopped,
		Stats: Statistics(a)}
}

// Statistics sums up an answer, in the form that answers over HTTP have. It counts the tokens that have come.
func Statistics(a *Answer) oai.Stats {
	r := Result(a.Finished)
	r.OutputTokens = len(a.Tokens)
	return *oai.NewStats(r, a.First)
}

// Line returns the line of statistics that ends a generation.
func (g Generation) Line() string { return Line(g.Stats, len(g.Tokens)) }

// Line returns the line of statistics of a generation of n tokens.
func Line(s oai.Stats, n int) string {
	out := fmt.Sprintf("%d tokens, %.1f tokens/s, %d rounds, %.2f tokens per round", n, s.TokensPerSecond, s.Rounds, s.TokensPerRound)
	if s.Accept != "" {
		out += ", accept: " + s.Accept + " (lossy)"
	}
	if s.Drafted == 0 {
		return out + ", no drafts"
	}
	return out + fmt.Sprintf(", accepted %d: %.0f %% of levels, %.0f %% of nodes", s.Accepted, 100*s.DepthAcceptance,
		100*s.NodeAcceptance)
}

// Gain returns the line that tells how many times as fast as plain decoding an answer was; "" if nothing was drafted or it is not known.
// Below 1 it was slower.
func Gain(s oai.Stats) string {
	if s.Drafted == 0 || s.Gain <= 0 {
		return ""
	}
	same := ", same text"
	if s.Accept != "" {
		same = ", another text (accept: " + s.Accept + ")"
	}
	return fmt.Sprintf("%.2g × plain on this talk%s", s.Gain, same)
}

// Logprob is the log-probability of one token as --json prints it.
type Logprob struct {
	LogProb float32      `json:"logprob"`
	Top     []TopLogprob `json:"top,omitempty"`
}

// TopLogprob is the log-probability of one of the likeliest tokens.
type TopLogprob struct {
	Token   uint32  `json:"token"`
	LogProb float32 `json:"logprob"`
}

func fromLogprobs(list []client.Logprob) (out []Logprob) {
	for _, l := range list {
		p := Logprob{LogProb: l.LogProb}
		for _, t := range l.Top {
			p.Top = append(p.Top, TopLogprob(t))
		}
		out = append(out, p)
	}
	return out
}

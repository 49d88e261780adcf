package oai

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
)

// Head is the beginning of every answer and chunk of a call.
type Head struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	Model       string `json:"model"`
	Fingerprint string `json:"system_fingerprint"` // the identity of the verifier
}

// By returns h with the identity of what computes the answer.
func (h Head) By(identity string) Head {
	h.Fingerprint = identity
	return h
}

// Choice is one choice of an answer or of a chunk.
type Choice struct {
	Index    int      `json:"index"`
	Message  *Turn    `json:"message,omitempty"` // in a chat's answer
	Delta    *Turn    `json:"delta,omitempty"`   // in a chat's chunk
	Text     *string  `json:"text,omitempty"`    // in a completion's answer and chunk
	Logprobs any      `json:"logprobs"`          // *ChatLogprobs, *Logprobs or nil
	Finish   *string  `json:"finish_reason"`
	Tandem   *Account `json:"tandem,omitempty"` // in a choice that is complete
}

// Turn is an assistant's turn, or a piece of it.
type Turn struct {
	Role      string                  `json:"role,omitempty"`
	Content   any                     `json:"content,omitempty"` // a string, Null beside calls alone
	Reasoning string                  `json:"reasoning_content,omitempty"`
	ToolCalls []conversation.ToolCall `json:"tool_calls,omitempty"`
}

// Answer is a whole answer.
type Answer struct {
	Head
	Choices []Choice `json:"choices"`
	Usage   *Usage   `json:"usage"`
	Timings *Timings `json:"timings,omitempty"`
	Tandem  *Account `json:"tandem,omitempty"` // how the only choice was drawn, and its statistics
}

// Chunk is one event of a stream.
type Chunk struct {
	Head
	Choices []Choice        `json:"choices"`
	Usage   json.RawMessage `json:"usage,omitempty"` // null in all chunks but the last, of a call that includes usage
	Timings *Timings        `json:"timings,omitempty"`
	Tandem  *Account        `json:"tandem,omitempty"`

	Progress *PromptProgress `json:"prompt_progress,omitempty"`
}

// PromptProgress is llama.cpp's: how far a prompt has been read.
type PromptProgress struct {
	Total     int   `json:"total"`
	Cache     int   `json:"cache"`
	Processed int   `json:"processed"` // those from the cache included
	TimeMS    int64 `json:"time_ms"`
}

// NewPromptProgress returns p in llama.cpp's form.
func NewPromptProgress(p tandem.PromptProgress) *PromptProgress {
	return &PromptProgress{p.Total, p.Cached, p.Processed, p.Time.Milliseconds()}
}

// Null is JSON's null.
var Null = json.RawMessage("null")

// Usage counts tokens. Drafts are never output.
type Usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails *CompletionDetails `json:"completion_tokens_details,omitempty"` // in chats
}

// CompletionDetails says what output tokens are.
type CompletionDetails struct {
	Reasoning int `json:"reasoning_tokens"`
}

// Add counts one more generation; its prompt only if it is the first of that prompt.
func (u *Usage) Add(r tandem.Result, first bool) {
	if first {
		u.Prompt += r.PromptTokens
		u.Details.Cached += r.CachedTokens
	}
	u.Completion += r.OutputTokens
	u.Total = u.Prompt + u.Completion
}

// AddThoughts counts the tokens of a chat's thoughts, which are output tokens, too.
func (u *Usage) AddThoughts(n int) {
	if u.CompletionDetails == nil {
		u.CompletionDetails = new(CompletionDetails)
	}
	u.CompletionDetails.Reasoning += n
}

// Timings are llama.cpp's. Of several generations they are the sums of the tokens, and the longest times.
type Timings struct {
	CacheN             int     `json:"cache_n"`
	PromptN            int     `json:"prompt_n"` // computed, the cached ones not counted
	PromptMS           float64 `json:"prompt_ms"`
	PromptPerToken     float64 `json:"prompt_per_token_ms"`
	PromptPerSecond    float64 `json:"prompt_per_second"`
	PredictedN         int     `json:"predicted_n"`
	PredictedMS        float64 `json:"predicted_ms"`
	PredictedPerToken  float64 `json:"predicted_per_token_ms"`
	PredictedPerSecond float64 `json:"predicted_per_second"`
	DraftN             int     `json:"draft_n"`
	DraftAccepted      int     `json:"draft_n_accepted"`
	Accept             string  `json:"accept,omitempty"` // as Stats.Accept
}

// Add counts one more generation; its prompt only if it is the first of that prompt, because the others find what that has computed.
func (t *Timings) Add(r tandem.Result, first bool) {
	if first {
		t.CacheN += r.CachedTokens
		t.PromptN += r.PromptTokens - r.CachedTokens
	}
	t.PredictedN += r.OutputTokens
	t.DraftN += r.Stats.Drafted
	t.DraftAccepted += r.Stats.Accepted
	t.Accept = r.Stats.Accept
	t.PromptMS = max(t.PromptMS, milliseconds(r.Stats.Prefill))
	t.PredictedMS = max(t.PredictedMS, milliseconds(r.Stats.Decode))
	t.PromptPerToken, t.PromptPerSecond = share(t.PromptMS, float64(t.PromptN)), share(1000*float64(t.PromptN), t.PromptMS)
	t.PredictedPerToken, t.PredictedPerSecond = share(t.PredictedMS, float64(t.PredictedN)),
		share(1000*float64(t.PredictedN), t.PredictedMS)
}

func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

// share returns a/b, 0 for b = 0.
func share(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Word is the text of a token. Bytes are what it adds to the text: nothing for a control token. Text is how it is written: its Bytes as
// tandem.Lossy makes them UTF-8 or, for a token that adds nothing, its name, such as <|im_end|>.
type Word struct {
	Text  string
	Bytes []byte
}

// legacy returns w in the older completions' form, which has no bytes beside the text: parts of characters are written out.
func (w Word) legacy() string {
	if utf8.Valid(w.Bytes) {
		return w.Text
	}
	var b strings.Builder
	b.WriteString("bytes:")
	for _, c := range w.Bytes {
		fmt.Fprintf(&b, `\x%02x`, c)
	}
	return b.String()
}

// ints is bytes as a JSON array of numbers.
type ints []byte

func (b ints) MarshalJSON() ([]byte, error) {
	out := append(make([]byte, 0, 4*len(b)+2), '[')
	for i, c := range b {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, int64(c), 10)
	}
	return append(out, ']'), nil
}

// ChatLogprobs is the form of log-probabilities in chats.
type ChatLogprobs struct {
	Content []TokenLogprob `json:"content"`
	Refusal []TokenLogprob `json:"refusal"`
}

// TokenLogprob is one token of a chat with its log-probability.
type TokenLogprob struct {
	topLogprob
	Top []topLogprob `json:"top_logprobs"`
}

type topLogprob struct {
	Token   string  `json:"token"`
	LogProb float64 `json:"logprob"`
	Bytes   ints    `json:"bytes"`
}

// NewChatLogprobs returns the log-probabilities of tokens.
func NewChatLogprobs(tokens []tandem.Token, logprobs []tandem.Logprob, word func(tandem.Token) Word) *ChatLogprobs {
	out := &ChatLogprobs{Content: make([]TokenLogprob, len(logprobs))}
	one := func(t tandem.Token, p float32) topLogprob {
		w := word(t)
		return topLogprob{w.Text, Finite(p), w.Bytes}
	}
	for i, l := range logprobs {
		c := TokenLogprob{topLogprob: one(tokens[i], l.LogProb), Top: make([]topLogprob, len(l.Top))}
		for j, t := range l.Top {
			c.Top[j] = one(t.Token, t.LogProb)
		}
		out.Content[i] = c
	}
	return out
}

// Logprobs is the form of log-probabilities in the older completions: lists of one entry per token.
type Logprobs struct {
	Tokens   []string             `json:"tokens"`
	LogProbs []float64            `json:"token_logprobs"`
	Top      []map[string]float64 `json:"top_logprobs"` // the likeliest tokens and the one that came
	Offsets  []int                `json:"text_offset"`  // in characters, from the start of the prompt
}

// Offsets follows where tokens begin in a text, in characters.
type Offsets struct {
	At   int                       // characters before the next token; the one that it completes is not counted
	Text func(tandem.Token) string // what each token adds
}

// NewLogprobs returns the log-probabilities of the tokens that come next.
func NewLogprobs(tokens []tandem.Token, logprobs []tandem.Logprob, at *Offsets, word func(tandem.Token) Word) *Logprobs {
	n := len(logprobs)
	out := &Logprobs{Tokens: make([]string, n), LogProbs: make([]float64, n), Top: make([]map[string]float64, n), Offsets: make([]int, n)}
	for i, l := range logprobs {
		name := word(tokens[i]).legacy()
		out.Tokens[i], out.LogProbs[i], out.Offsets[i] = name, Finite(l.LogProb), at.At
		at.At += utf8.RuneCountInString(at.Text(tokens[i]))
		top := make(map[string]float64, len(l.Top)+1)
		for _, t := range l.Top {
			name := word(t.Token).legacy()
			if _, twice := top[name]; !twice { // tokens may be written alike: the likeliest counts
				top[name] = Finite(t.LogProb)
			}
		}
		if _, there := top[name]; !there {
			top[name] = Finite(l.LogProb)
		}
		out.Top[i] = top
	}
	return out
}

// Finite returns p as a number that JSON has; OpenAI's API uses -9999 for an impossible token.
func Finite(p float32) float64 {
	if math.IsNaN(float64(p)) || p < -9999 {
		return -9999
	}
	return float64(p)
}

// Package llamacpp writes the answers of the native API of llama.cpp's server.
package llamacpp

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/bodies"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// Params are how tokens are drawn, and how many.
type Params struct {
	Seed             json.Number `json:"seed"` // -1: a random one for each request
	Temperature      float64     `json:"temperature"`
	TopK             int         `json:"top_k"`
	TopP             float64     `json:"top_p"`
	MinP             float64     `json:"min_p"`
	RepeatLast       int         `json:"repeat_last_n"`
	RepeatPenalty    float64     `json:"repeat_penalty"`
	PresencePenalty  float64     `json:"presence_penalty"`
	FrequencyPenalty float64     `json:"frequency_penalty"`
	MaxTokens        int         `json:"max_tokens"`
	Predict          int         `json:"n_predict"` // the same
	IgnoreEOS        bool        `json:"ignore_eos"`
	Stream           bool        `json:"stream"`
}

// NewParams returns the parameters of a generation.
func NewParams(r tandem.Request) Params {
	s := r.Sampling
	return Params{Seed: json.Number(strconv.FormatUint(s.Seed, 10)), Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP, MinP: s.MinP,
		RepeatLast:    cmp.Or(s.RepeatLast, tandem.DefaultRepeatLast),
		RepeatPenalty: cmp.Or(s.RepeatPenalty, 1), PresencePenalty: s.PresencePenalty, FrequencyPenalty: s.FrequencyPenalty,
		MaxTokens: r.MaxTokens, Predict: r.MaxTokens, IgnoreEOS: r.IgnoreEOS}
}

// Settings are the parameters of a completion in its answer: sent back, they give the same text.
type Settings struct {
	Params
	Stop    []string `json:"stop"`
	Bias    [][2]any `json:"logit_bias"` // pairs of a token and what is added
	Probs   int      `json:"n_probs"`
	Times   bool     `json:"timings_per_token"`
	Context int      `json:"n_ctx"`
	Accept  string   `json:"accept,omitempty"` // tandem's
}

// NewSettings returns the settings of a generation; stop are those sequences that the client gave.
func NewSettings(r tandem.Request, of bodies.Native, stop []string, stream bool, window int) Settings {
	s := Settings{Params: NewParams(r), Stop: append([]string{}, stop...), Bias: [][2]any{}, Probs: of.Probs, Times: of.Times,
		Context: window}
	s.Stream = stream
	for _, b := range r.Sampling.Bias {
		s.Bias = append(s.Bias, [2]any{b.Token, b.Add})
	}
	if r.Sampling.Typical() {
		s.Accept = string(r.Sampling.Accept)
	}
	return s
}

// Piece is one event of a stream but the last.
type Piece struct {
	Index     int            `json:"index"`
	Content   string         `json:"content"`
	Tokens    []tandem.Token `json:"tokens"`
	Stop      bool           `json:"stop"`    // false
	Slot      int            `json:"id_slot"` // -1: sessions have no numbers
	Predicted int            `json:"tokens_predicted"`
	Evaluated int            `json:"tokens_evaluated"`
	Probs     []Prob         `json:"completion_probabilities,omitempty"`
	Timings   *oai.Timings   `json:"timings,omitempty"`

	Progress *oai.PromptProgress `json:"prompt_progress,omitempty"`
}

// Answer is a whole answer, or the last event of a stream.
type Answer struct {
	Index     int            `json:"index"`
	Content   string         `json:"content"` // "" in a stream
	Tokens    []tandem.Token `json:"tokens"`
	Slot      int            `json:"id_slot"`
	Stop      bool           `json:"stop"` // true
	Model     string         `json:"model"`
	Predicted int            `json:"tokens_predicted"`
	Evaluated int            `json:"tokens_evaluated"`
	Settings  Settings       `json:"generation_settings"`
	Prompt    string         `json:"prompt"`
	NewLine   bool           `json:"has_new_line"`
	Truncated bool           `json:"truncated"` // the context was full
	StopType  string         `json:"stop_type"` // "eos", "limit" or "word"
	Word      string         `json:"stopping_word"`
	Cached    int            `json:"tokens_cached"` // tokens of the prompt that were cached
	Timings   oai.Timings    `json:"timings"`
	Probs     []Prob         `json:"completion_probabilities,omitempty"`
	Identity  string         `json:"system_fingerprint"` // tandem's: what computed the text
	Tandem    *oai.Account   `json:"tandem,omitempty"`   // in an answer that was ended because it repeated itself
}

// Ended returns a with the end of a generation. word is the client's stop sequence that ended it, "" for none.
func (a Answer) Ended(r tandem.Result, word string, window int) Answer {
	a.Slot, a.Stop, a.Word, a.StopType, a.Identity = -1, true, word, "eos", string(r.Identity)
	switch {
	case r.Finish == tandem.FinishLength:
		a.StopType = "limit"
		a.Truncated = r.PromptTokens+r.OutputTokens >= window
	case word != "":
		a.StopType = "word"
	}
	a.Predicted, a.Evaluated, a.Cached = r.OutputTokens, r.PromptTokens, r.CachedTokens
	a.Timings.Add(r, true)
	a.Tandem = oai.Repeated(r)
	return a
}

// only returns v with those of its fields alone, as response_fields names them: "a/b" is field b of a. Nil names are all.
func only(names []string, v any) any {
	if names == nil {
		return v
	}
	raw, _ := conversation.Marshal(v)
	out := map[string]json.RawMessage{}
next:
	for _, name := range names {
		at := raw
		for _, key := range strings.Split(name, "/") {
			var object map[string]json.RawMessage
			if json.Unmarshal(at, &object) != nil || object[key] == nil {
				continue next
			}
			at = object[key]
		}
		out[name] = at
	}
	return out
}

// Prob is a token with its log-probability, and the likeliest tokens at its place.
type Prob struct {
	ID      tandem.Token `json:"id"`
	Token   string       `json:"token"`
	Bytes   []int        `json:"bytes"`
	LogProb float64      `json:"logprob"`
	Top     []Prob       `json:"top_logprobs,omitempty"`
}

// NewProbs returns the log-probabilities of tokens.
func NewProbs(tokens []tandem.Token, all []tandem.Logprob, word func(tandem.Token) oai.Word) []Prob {
	one := func(t tandem.Token, p float32) Prob {
		w := word(t)
		out := Prob{ID: t, Token: w.Text, Bytes: make([]int, len(w.Bytes)), LogProb: oai.Finite(p)}
		for i, b := range w.Bytes {
			out.Bytes[i] = int(b)
		}
		return out
	}
	out := make([]Prob, len(all))
	for i, l := range all {
		out[i] = one(tokens[i], l.LogProb)
		for _, t := range l.Top {
			out[i].Top = append(out[i].Top, one(t.Token, t.LogProb))
		}
	}
	return out
}

// Slot is room for one session, in the answer to /slots. It has no text.
type Slot struct {
	ID         int     `json:"id"`
	Task       int     `json:"id_task"` // counts generations; -1: there was none
	Context    int     `json:"n_ctx"`
	Speculates bool    `json:"speculative"`
	Busy       bool    `json:"is_processing"`
	Params     *Params `json:"params,omitempty"` // how the generation there is drawn, if it is the caller's
	Next       []Next  `json:"next_token,omitempty"`
}

// Next says how far a generation is.
type Next struct {
	More    bool `json:"has_next_token"`
	Remain  int  `json:"n_remain"`
	Decoded int  `json:"n_decoded"`
}

// Error returns an error's body.
func Error(e *oai.Error) any {
	type inner struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Type    string `json:"type"`
		Param   string `json:"param,omitempty"`
		Prompt  int    `json:"n_prompt_tokens,omitempty"`
		Context int    `json:"n_ctx,omitempty"`
		Request string `json:"request_id,omitempty"`
	}
	out := inner{Code: e.Status, Message: e.Message, Type: e.Type, Param: e.Param, Request: e.Request}
	if kind := errorTypes[e.Status]; kind != "" {
		out.Type = kind
	}
	if e.TooLong.Tokens > 0 {
		out.Type, out.Prompt, out.Context = "exceed_context_size_error", e.TooLong.Tokens, e.TooLong.Context
	}
	return map[string]inner{"error": out}
}

// errorTypes are llama.cpp's names of statuses, where they differ.
var errorTypes = map[int]string{http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error",
	http.StatusNotFound: "not_found_error"}

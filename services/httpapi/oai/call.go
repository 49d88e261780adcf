package oai

import (
	crand "crypto/rand"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/public"
)

// MostChoices is how many generations one body may ask for: prompts times n.
const MostChoices = 16

// Call is a decoded body of /v1/chat/completions or /v1/completions.
type Call struct {
	Chat         bool
	Model        string // "" if the body names none
	Messages     []Message
	Prompts      []Prompt // of completions
	N            int      // choices for each prompt
	Stream       bool
	IncludeUsage bool
	Request      tandem.Request // without a prompt; its seed is the first choice's

	maxName     string // what the body calls MaxTokens
	maxTokens   int    // as max_tokens says
	maxNew      int    // as max_completion_tokens says
	seeded      bool
	top         bool // top_logprobs was given
	bestOf      int
	options     bool                 // stream_options was given
	speculation tandemv1.Speculation // as gRPC has it
}

// Prompt is a text, or tokens taken as they are.
type Prompt struct {
	Text   string
	Tokens []tandem.Token // nil for a text
}

// reader reads one field of a body; null is never handed to it: it is the same as a field that is not there.
type reader func(c *Call, name string, raw json.RawMessage) error

// common are the fields of both kinds of bodies.
var common = map[string]reader{
	"model": text(func(c *Call) *string { return &c.Model }),

	"max_tokens":  integer(func(c *Call) *int { return &c.maxTokens }),
	"temperature": float(func(c *Call) *float64 { return &c.Request.Sampling.Temperature }),
	"top_p":       float(func(c *Call) *float64 { return &c.Request.Sampling.TopP }),
	"seed": func(c *Call, name string, raw json.RawMessage) error {
		c.seeded = true
		return readSeed(name, raw, &c.Request.Sampling.Seed)
	},
	"frequency_penalty": float(func(c *Call) *float64 { return &c.Request.Sampling.FrequencyPenalty }),
	"presence_penalty":  float(func(c *Call) *float64 { return &c.Request.Sampling.PresencePenalty }),
	"logit_bias":        readBias,
	"stop":              readStop,
	"n":                 integer(func(c *Call) *int { return &c.N }),
	"stream":            boolean(func(c *Call) *bool { return &c.Stream }),
	"stream_options":    readStreamOptions,
	"response_format":   only(`{"type":"text"}`),

	// beyond OpenAI's
	"top_k":          integer(func(c *Call) *int { return &c.Request.Sampling.TopK }),
	"min_p":          float(func(c *Call) *float64 { return &c.Request.Sampling.MinP }),
	"repeat_penalty": float(func(c *Call) *float64 { return &c.Request.Sampling.RepeatPenalty }),
	"repeat_last_n":  integer(func(c *Call) *int { return &c.Request.Sampling.RepeatLast }),
	"ignore_eos":     boolean(func(c *Call) *bool { return &c.Request.IgnoreEOS }),
	"speculation":    readSpeculation,

	// labels that change nothing in the answer
	"user": label, "safety_identifier": label, "prompt_cache_key": label,
	"metadata": func(_ *Call, name string, raw json.RawMessage) error {
		return object(name, raw, func(string, json.RawMessage) error { return nil })
	},
}

// chatOnly are the fields of chat bodies alone. Those that only accept what asks for nothing stand here too, because
// client libraries send them unasked.
var chatOnly = map[string]reader{
	"messages":              readMessages,
	"max_completion_tokens": integer(func(c *Call) *int { return &c.maxNew }),
	"logprobs":              boolean(func(c *Call) *bool { return &c.Request.Sampling.Logprobs }),
	"top_logprobs": func(c *Call, name string, raw json.RawMessage) error {
		c.top = true
		return readInt(name, raw, &c.Request.Sampling.TopLogprobs)
	},
	"tools": empty, "functions": empty,
	"tool_choice":         only(`"none"`, `"auto"`),
	"function_call":       only(`"none"`, `"auto"`),
	"parallel_tool_calls": only("true", "false"), // there are no tools to call
	"store":               only("false"),
	"modalities":          only(`["text"]`),
	"service_tier":        only(`"auto"`, `"default"`),
	"reasoning_effort":    only(`"none"`),
	"audio":               only(), "prediction": only(), "web_search_options": only(), "verbosity": only(),
}

// completionOnly are the fields of the older completions alone.
var completionOnly = map[string]reader{
	"prompt":   readPrompts,
	"logprobs": readLegacyLogprobs,
	"best_of":  integer(func(c *Call) *int { return &c.bestOf }),
	"echo":     only("false"),
	"suffix":   only(`""`),
}

// ReadChat decodes a body of /v1/chat/completions, with d for what it leaves out. Errors: Invalid and Unsupported,
// with the field.
func ReadChat(body []byte, d public.Defaults) (*Call, error) {
	return read(body, &Call{Chat: true}, chatOnly, "messages", d)
}

// ReadCompletion decodes a body of /v1/completions.
func ReadCompletion(body []byte, d public.Defaults) (*Call, error) {
	return read(body, &Call{}, completionOnly, "prompt", d)
}

func read(body []byte, c *Call, own map[string]reader, needed string, d public.Defaults) (*Call, error) {
	if err := check(body); err != nil {
		return nil, err
	}
	c.N, c.maxTokens, c.maxNew, c.maxName, c.bestOf = 1, unset, unset, "max_tokens", unset
	c.Request = tandem.Request{MaxTokens: d.MaxTokens, Sampling: d.Sampling}
	missing := true
	err := object("", body, func(name string, raw json.RawMessage) error {
		f, known := own[name]
		if !known {
			f, known = common[name]
		}
		switch {
		case !known:
			return unsupported(name, "unknown field %.100q: tandem does not support it", name)
		case isNull(raw):
			return nil
		}
		missing = missing && name != needed
		return f(c, name, raw)
	})
	if err != nil {
		return nil, err
	}
	if missing {
		return nil, bad(needed, "%s is missing", needed)
	}
	return c, c.finish(d)
}

// unset is an integer that no body can say.
const unset = -1 << 40

// finish checks what one field alone cannot tell.
func (c *Call) finish(d public.Defaults) error {
	switch {
	case c.maxNew != unset && c.maxTokens != unset && c.maxNew != c.maxTokens:
		return bad("max_completion_tokens", "max_completion_tokens is %d and max_tokens %d: want one of them", c.maxNew, c.maxTokens)
	case c.maxNew != unset:
		c.Request.MaxTokens, c.maxName = c.maxNew, "max_completion_tokens"
	case c.maxTokens != unset:
		c.Request.MaxTokens = c.maxTokens
	}
	prompts := max(len(c.Prompts), 1)
	switch {
	case c.N < 1 || c.N > MostChoices:
		return bad("n", "n is %d: want 1 to %d", c.N, MostChoices)
	case c.N*prompts > MostChoices:
		return bad("n", "n is %d for %d prompts: want at most %d choices in all", c.N, prompts, MostChoices)
	case c.bestOf != unset && c.bestOf != c.N:
		return unsupported("best_of", "best_of is %d and n %d: want the same, every choice is returned", c.bestOf, c.N)
	case c.options && !c.Stream:
		return bad("stream_options", "stream_options is there without stream: want \"stream\": true")
	case c.top && !c.Request.Sampling.Logprobs:
		return bad("top_logprobs", "top_logprobs is there without logprobs: want \"logprobs\": true")
	}
	if !c.seeded {
		var b [8]byte
		_, _ = crand.Read(b[:])
		c.Request.Sampling.Seed = binary.LittleEndian.Uint64(b[:])
	}
	return c.InItsWords(d.Speculate(&c.Request, &c.speculation))
}

func text(at func(*Call) *string) reader {
	return func(c *Call, name string, raw json.RawMessage) error { return readText(name, raw, at(c)) }
}

func integer(at func(*Call) *int) reader {
	return func(c *Call, name string, raw json.RawMessage) error { return readInt(name, raw, at(c)) }
}

func float(at func(*Call) *float64) reader {
	return func(c *Call, name string, raw json.RawMessage) error { return readFloat(name, raw, at(c)) }
}

func boolean(at func(*Call) *bool) reader {
	return func(c *Call, name string, raw json.RawMessage) error { return readBool(name, raw, at(c)) }
}

// only returns a reader that takes nothing but these values, which ask for what tandem does anyhow.
func only(values ...string) reader {
	return func(_ *Call, name string, raw json.RawMessage) error {
		if slices.Contains(values, compact(raw)) {
			return nil
		}
		if len(values) == 0 {
			return unsupported(name, "%s is not supported: leave it out", name)
		}
		return unsupported(name, "%s is %s: only %s is supported", name, show(raw), list(values))
	}
}

// empty takes an array without elements.
func empty(_ *Call, name string, raw json.RawMessage) error {
	if compact(raw) == "[]" {
		return nil
	}
	return unsupported(name, "%s is not supported: leave it out", name)
}

const maxLabel = 512 // bytes

func label(_ *Call, name string, raw json.RawMessage) error {
	var s string
	if err := readText(name, raw, &s); err != nil {
		return err
	}
	if len(s) > maxLabel {
		return bad(name, "%s has %d bytes: want at most %d", name, len(s), maxLabel)
	}
	return nil
}

// readStop reads one sequence or an array of them.
func readStop(c *Call, name string, raw json.RawMessage) error {
	if kindOf(raw) == "a string" {
		c.Request.Stop = make([]string, 1)
		return readText(name, raw, &c.Request.Stop[0])
	}
	if kindOf(raw) != "an array" {
		return bad(name, "%s is %s: want a string or an array of at most %d", name, show(raw), tandem.MostStops)
	}
	return array(name, raw, tandem.MostStops, func(i int, raw json.RawMessage) error {
		var s string
		err := readText(element(name, i), raw, &s)
		c.Request.Stop = append(c.Request.Stop, s)
		return err
	})
}

// readBias reads an object of token ids and what to add to their logits.
func readBias(c *Call, name string, raw json.RawMessage) error {
	c.Request.Sampling.Bias = nil // those of the defaults are not ours to change
	err := object(name, raw, func(id string, raw json.RawMessage) error {
		t, err := strconv.ParseInt(id, 10, 32)
		if err != nil || strconv.FormatInt(t, 10) != id {
			return bad(name, "%s names token %.50q: want the id of a token", name, id)
		}
		var add float64
		if err := readFloat(join(name, id), raw, &add); err != nil {
			return err
		}
		c.Request.Sampling.Bias = append(c.Request.Sampling.Bias, tandem.Bias{Token: tandem.Token(t), Add: float32(add)})
		return nil
	})
	slices.SortFunc(c.Request.Sampling.Bias, func(a, b tandem.Bias) int { return int(a.Token) - int(b.Token) })
	return err
}

func readStreamOptions(c *Call, name string, raw json.RawMessage) error {
	c.options = true
	return object(name, raw, func(field string, raw json.RawMessage) error {
		full := join(name, field)
		switch {
		case isNull(raw):
			return nil
		case field == "include_usage":
			return readBool(full, raw, &c.IncludeUsage)
		case field == "include_obfuscation":
			return only("false")(c, full, raw)
		}
		return unsupported(full, "unknown field %.100q: tandem does not support it", full)
	})
}

// readLegacyLogprobs reads how many of the likeliest tokens to tell beside each token.
func readLegacyLogprobs(c *Call, name string, raw json.RawMessage) error {
	c.Request.Sampling.Logprobs = true
	return readInt(name, raw, &c.Request.Sampling.TopLogprobs)
}

// maxPromptTokens bounds what is read of a prompt in tokens before the context is looked at.
const maxPromptTokens = 1 << 20

// readPrompts reads a string, an array of strings, an array of token ids or an array of such.
func readPrompts(c *Call, name string, raw json.RawMessage) error {
	if kindOf(raw) == "a string" {
		c.Prompts = make([]Prompt, 1)
		return readText(name, raw, &c.Prompts[0].Text)
	}
	if kindOf(raw) != "an array" {
		return bad(name, "%s is %s: want a string, an array of strings, an array of token ids, or an array of such", name, show(raw))
	}
	first := ""
	var ids []tandem.Token
	err := array(name, raw, maxPromptTokens, func(i int, raw json.RawMessage) error {
		kind, full := kindOf(raw), element(name, i)
		if first = or(first, kind); kind != first {
			return bad(full, "%s is %s behind %s: want elements of one kind", full, kind, first)
		}
		if kind == "a number" {
			t, err := readToken(full, raw)
			ids = append(ids, t)
			return err
		}
		if i == MostChoices {
			return bad(name, "%s has more than %d prompts", name, MostChoices)
		}
		p, err := readPrompt(full, raw)
		c.Prompts = append(c.Prompts, p)
		return err
	})
	switch {
	case err != nil:
		return err
	case ids != nil:
		c.Prompts = []Prompt{{Tokens: ids}}
	case len(c.Prompts) == 0:
		return bad(name, "%s is an empty array: want at least one prompt", name)
	}
	return nil
}

func readPrompt(name string, raw json.RawMessage) (p Prompt, err error) {
	switch kindOf(raw) {
	case "a string":
		return p, readText(name, raw, &p.Text)
	case "an array":
		p.Tokens, err = ReadTokens(name, raw)
		return p, err
	}
	return p, bad(name, "%s is %s: want a string or an array of token ids", name, show(raw))
}

// ReadTokens reads an array of token ids; the vocabulary is not looked at.
func ReadTokens(name string, raw json.RawMessage) ([]tandem.Token, error) {
	ids := []tandem.Token{}
	err := array(name, raw, maxPromptTokens, func(i int, raw json.RawMessage) error {
		t, err := readToken(element(name, i), raw)
		ids = append(ids, t)
		return err
	})
	return ids, err
}

func readToken(name string, raw json.RawMessage) (tandem.Token, error) {
	id := 0
	err := readInt(name, raw, &id)
	return tandem.Token(id), err
}

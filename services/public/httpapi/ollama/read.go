// Package ollama translates Ollama's API into chats and completions and back: the fields of a body become those of OpenAI's, so that one
// decoder checks all. What Ollama's server would do otherwise, and what changes the answer's meaning, is refused by name.
package ollama

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// request is a body of /api/chat or /api/generate.
type request struct {
	Model     string                     `json:"model"`
	Messages  []message                  `json:"messages"`
	Prompt    string                     `json:"prompt"`
	Suffix    string                     `json:"suffix"`
	System    string                     `json:"system"`
	Template  string                     `json:"template"`
	Context   json.RawMessage            `json:"context"`
	Raw       bool                       `json:"raw"`
	Images    json.RawMessage            `json:"images"`
	Tools     json.RawMessage            `json:"tools"`
	Format    json.RawMessage            `json:"format"`
	Options   map[string]json.RawMessage `json:"options"`
	Stream    *bool                      `json:"stream"`
	Think     json.RawMessage            `json:"think"`
	KeepAlive json.RawMessage            `json:"keep_alive"`
}

type message struct {
	Role      string          `json:"role"`
	Content   string          `json:"content"`
	Thinking  string          `json:"thinking"`
	Images    json.RawMessage `json:"images"`
	ToolCalls []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
	ToolName string `json:"tool_name"`
	Name     string `json:"name"` // the same, of older clients
	ToolID   string `json:"tool_call_id"`
}

// Plan is a body as a chat or a completion.
type Plan struct {
	Body json.RawMessage // of /v1/chat/completions or, if Raw, of /v1/completions
	Raw  bool
	Load bool // the body asks for no text: Ollama's way to load a model, or to let it go
	Stay bool // and the model stays

	Before []tandem.Token    // of an earlier answer, which this one continues
	Names  map[string]string // of this API, of the fields in Body
}

// Limits bound what a body asks for.
type Limits struct {
	Context int // the window of the model, which num_ctx must not exceed
	Vocab   int
	Strict  bool // as of oai.Shape
}

// Chat translates a body of /api/chat, Generate one of /api/generate. ignored is called with what has no effect. Errors: Invalid and
// Unsupported, with the field.
func Chat(body []byte, l Limits, ignored func(string)) (*Plan, error) {
	r, out, names, err := read(body, l, "prompt suffix system template context raw images", ignored)
	if err != nil {
		return nil, err
	}
	if len(r.Messages) == 0 {
		return r.load(), nil
	}
	r.keeps(ignored)
	var turns []oai.Sent
	for i, m := range r.Messages {
		if oai.Asks(m.Images) && m.Role != "tool" && m.Role != "assistant" {
			return nil, oai.Unsupported(fmt.Sprintf("messages[%d].images", i), "messages[%d].images is not supported: leave it out", i)
		}
		t := oai.Sent{Role: m.Role, Content: m.Content, Reasoning: m.Thinking}
		for k, c := range m.ToolCalls {
			id := cmp.Or(c.ID, fmt.Sprintf("call%02d%03d", i%100, k%1000))
			t.ToolCalls = append(t.ToolCalls, oai.SentCall(id, c.Function.Name, c.Function.Arguments))
		}
		if oai.Asks(m.Images) {
			ignored("messages[].images")
			t.Content = strings.TrimPrefix(t.Content+"\n"+oai.Instead("images"), "\n")
		}
		if m.Role == "tool" {
			t.CallID, t.Name = m.ToolID, cmp.Or(m.ToolName, m.Name)
		}
		turns = append(turns, t)
	}
	out["messages"] = r.asked(turns, ignored)
	if oai.Asks(r.Tools) {
		out["tools"] = r.Tools
	}
	raw, err := conversation.Marshal(out)
	return &Plan{Body: raw, Names: names}, err
}

// Generate translates a body of /api/generate: a chat with one message or, if raw or with a suffix, a text to continue.
func Generate(body []byte, l Limits, ignored func(string)) (*Plan, error) {
	r, out, names, err := read(body, l, "messages tools", ignored)
	if err != nil {
		return nil, err
	}
	var before []tandem.Token
	if oai.Asks(r.Context) {
		if before, err = oai.Tokens("context", r.Context, l.Vocab, l.Context-1); err != nil {
			return nil, err
		}
	}
	switch {
	case oai.Asks(r.Images):
		return nil, oai.Unsupported("images", "images is not supported: leave it out")
	case r.Template != "":
		return nil, oai.Unsupported("template", "template is not supported: the model's own is used, or none with \"raw\": true")
	case r.Prompt == "" && r.Suffix == "":
		return r.load(), nil
	case len(before) > 0 && (r.Raw || r.Suffix != ""):
		return nil, oai.Unsupported("context", "context is there with raw or a suffix: want one of them")
	}
	r.keeps(ignored)
	switch {
	case r.Raw || r.Suffix != "":
		if r.System != "" || oai.Asks(r.Format) {
			return nil, oai.Unsupported("system", "system and format need the chat template: leave them out with raw or a suffix")
		}
		if out["prompt"] = r.Prompt; r.Suffix != "" {
			out["suffix"] = r.Suffix
		}
		raw, err := conversation.Marshal(out)
		return &Plan{Body: raw, Raw: true, Names: names}, err
	}
	var turns []oai.Sent
	if r.System != "" {
		turns = append(turns, oai.Sent{Role: "system", Content: r.System})
	}
	out["messages"] = r.asked(append(turns, oai.Sent{Role: "user", Content: r.Prompt}), ignored)
	raw, err := conversation.Marshal(out)
	names["messages"] = "prompt"
	return &Plan{Body: raw, Names: names, Before: before}, err
}

// load returns the plan of a body that asks for no text.
func (r *request) load() *Plan {
	var seconds float64
	var text string
	gone := json.Unmarshal(r.KeepAlive, &seconds) == nil && string(bytes.TrimSpace(r.KeepAlive)) != "null" && seconds == 0
	if json.Unmarshal(r.KeepAlive, &text) == nil && text != "" {
		d, err := time.ParseDuration(text)
		gone = err == nil && d == 0
	}
	return &Plan{Load: true, Stay: !gone}
}

// keeps notes that keep_alive has no effect beside a question: the model stays.
func (r *request) keeps(ignored func(string)) {
	if oai.Asks(r.KeepAlive) {
		ignored("keep_alive")
	}
}

// asked returns a conversation in which the system asks for the form of the answer; nothing forces it yet.
func (r *request) asked(turns []oai.Sent, ignored func(string)) []oai.Sent {
	if !oai.Asks(r.Format) {
		return turns
	}
	ignored("format")
	ask := "Answer with one JSON object, and with nothing else."
	if format := string(bytes.TrimSpace(r.Format)); format != `"json"` {
		ask = "Answer with one JSON value that follows this JSON Schema, and with nothing else:\n" + format
	}
	if len(turns) > 0 && turns[0].Role == "system" {
		turns[0].Content += "\n\n" + ask
		return turns
	}
	return append([]oai.Sent{{Role: "system", Content: ask}}, turns...)
}

// contextSize reads the window that a body asks for. It must not be larger than the model's.
func contextSize(raw json.RawMessage, window int) (int, error) {
	var n oai.Int
	if json.Unmarshal(raw, &n) != nil {
		return 0, oai.Bad("options.num_ctx", "options.num_ctx is %.50s: want an integer", raw)
	}
	if int(n) > window {
		return 0, oai.Bad("options.num_ctx", "options.num_ctx is %d: this server has a context of %d; start it with --ctx %d", n, window, n)
	}
	return int(n), nil
}

// read reads a body, and returns it with the fields that both paths share, and their names. It lacks the fields of the other path.
func read(body []byte, l Limits, lacks string, ignored func(string)) (*request, map[string]any, map[string]string, error) {
	var r request
	if err := oai.Unmarshal(body, &r); err != nil {
		return nil, nil, nil, err
	}
	shape := oai.Shape{Body: r, Inner: map[string]any{}, Strict: l.Strict, Ignored: ignored}
	for _, name := range strings.Fields(lacks) {
		shape.Inner[name] = nil
	}
	rest, err := shape.Rest(body)
	if err != nil {
		return nil, nil, nil, err
	}
	out, names := map[string]any{"stream": r.Stream == nil || *r.Stream}, map[string]string{}
	for name, raw := range rest {
		out[name] = raw
	}
	if r.Model != "" {
		out["model"] = strings.TrimSuffix(r.Model, ":latest")
	}
	for name, raw := range r.Options {
		var most oai.Int
		switch full := "options." + name; {
		case string(raw) == "null":
		case name == "num_predict" && json.Unmarshal(raw, &most) == nil && most < 1: // no limit
		case oai.Common(name):
			out[name], names[name] = raw, full
		case name == "num_ctx":
			if _, err := contextSize(raw, l.Context); err != nil {
				return nil, nil, nil, err
			}
		default:
			ignored(full)
		}
	}
	names["enable_thinking"], names["reasoning_effort"] = "think", "think"
	if raw := string(bytes.TrimSpace(r.Think)); raw == "true" || raw == "false" {
		out["enable_thinking"] = raw == "true"
	} else if oai.Asks(r.Think) { // "low", "medium", "high"
		out["reasoning_effort"] = r.Think
	}
	return &r, out, names, nil
}

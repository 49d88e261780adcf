// Package ollama translates Ollama's API into chats and completions and back: the fields of a body become those of OpenAI's, so that one
// decoder checks all. What Ollama's server would do otherwise, and what changes the answer's meaning, is refused by name.
package ollama

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem/services/conversation"
	"github.com/tandem-llm/tandem/services/httpapi/oai"
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
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
	ToolName string `json:"tool_name"`
	ToolID   string `json:"tool_call_id"`
}

// Plan is a body as a chat or a completion.
type Plan struct {
	Body json.RawMessage // of /v1/chat/completions or, if Raw, of /v1/completions
	Raw  bool
	Load bool // the body asks for no text: Ollama's way to load a model, or to let it go
	Stay bool // and the model stays
}

// Context is the window of the model, which num_ctx must not exceed.
type Context int

// options are Ollama's names of options, and those of chats.
var options = map[string]string{"num_predict": "max_tokens", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p",
	"min_p": "min_p", "seed": "seed", "stop": "stop", "repeat_penalty": "repeat_penalty", "repeat_last_n": "repeat_last_n",
	"presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty"}

// Chat translates a body of /api/chat, Generate one of /api/generate. ignored is called with what has no effect. Errors: Invalid and
// Unsupported, with the field.
func Chat(body []byte, window Context, ignored func(string)) (*Plan, error) {
	r, out, err := read(body, window, ignored)
	if err != nil {
		return nil, err
	}
	if len(r.Messages) == 0 {
		return r.load(), nil
	}
	var turns []oai.Sent
	last := "" // id of the latest call: Ollama's results name their tool alone
	for i, m := range r.Messages {
		if oai.Asks(m.Images) {
			return nil, oai.Unsupported(fmt.Sprintf("messages[%d].images", i), "messages[%d].images is not supported: leave it out", i)
		}
		t := oai.Sent{Role: m.Role, Content: m.Content, Reasoning: m.Thinking}
		for k, c := range m.ToolCalls {
			last = fmt.Sprintf("call%02d%03d", i%100, k%1000)
			t.ToolCalls = append(t.ToolCalls, oai.SentCall(last, c.Function.Name, c.Function.Arguments))
		}
		if m.Role == "tool" {
			t.CallID, t.Name = cmp.Or(m.ToolID, last), m.ToolName
		}
		turns = append(turns, t)
	}
	out["messages"] = r.asked(turns, ignored)
	if oai.Asks(r.Tools) {
		out["tools"] = r.Tools
	}
	raw, err := conversation.Marshal(out)
	return &Plan{Body: raw}, err
}

// Generate translates a body of /api/generate: a chat with one message or, if raw or with a suffix, a text to continue.
func Generate(body []byte, window Context, ignored func(string)) (*Plan, error) {
	r, out, err := read(body, window, ignored)
	if err != nil {
		return nil, err
	}
	for name, raw := range map[string]json.RawMessage{"images": r.Images, "context": r.Context} {
		if oai.Asks(raw) {
			return nil, oai.Unsupported(name, "%s is not supported: leave it out", name)
		}
	}
	switch {
	case r.Template != "":
		return nil, oai.Unsupported("template", "template is not supported: the model's own is used, or none with \"raw\": true")
	case r.Prompt == "" && r.Suffix == "":
		return r.load(), nil
	case r.Raw || r.Suffix != "":
		if r.System != "" || oai.Asks(r.Format) {
			return nil, oai.Unsupported("system", "system and format need the chat template: leave them out with raw or a suffix")
		}
		if out["prompt"] = r.Prompt; r.Suffix != "" {
			out["suffix"] = r.Suffix
		}
		raw, err := conversation.Marshal(out)
		return &Plan{Body: raw, Raw: true}, err
	}
	var turns []oai.Sent
	if r.System != "" {
		turns = append(turns, oai.Sent{Role: "system", Content: r.System})
	}
	out["messages"] = r.asked(append(turns, oai.Sent{Role: "user", Content: r.Prompt}), ignored)
	raw, err := conversation.Marshal(out)
	return &Plan{Body: raw}, err
}

// load returns the plan of a body that asks for no text.
func (r *request) load() *Plan {
	stay := string(bytes.TrimSpace(r.KeepAlive))
	return &Plan{Load: true, Stay: stay != "0" && stay != `"0"` && stay != `"0s"`}
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
func contextSize(raw json.RawMessage, window Context) (n int, err error) {
	if json.Unmarshal(raw, &n) != nil {
		return 0, oai.Bad("options.num_ctx", "options.num_ctx is %.50s: want an integer", raw)
	}
	if n > int(window) {
		return 0, oai.Bad("options.num_ctx", "options.num_ctx is %d: this server has a context of %d; start it with --ctx %d", n, window, n)
	}
	return n, nil
}

// read reads a body, and returns it with the fields that both paths share.
func read(body []byte, window Context, ignored func(string)) (*request, map[string]any, error) {
	var r request
	if err := oai.Unmarshal(body, &r); err != nil {
		return nil, nil, err
	}
	out := map[string]any{"stream": r.Stream == nil || *r.Stream}
	if r.Model != "" {
		out["model"] = strings.TrimSuffix(r.Model, ":latest")
	}
	for name, raw := range r.Options {
		switch to := options[name]; {
		case to == "max_tokens" && (string(raw) == "0"): // Ollama reads it as no limit, as any below 1
		case to != "":
			out[to] = raw
		case name == "num_ctx":
			if _, err := contextSize(raw, window); err != nil {
				return nil, nil, err
			}
		default:
			ignored("options." + name)
		}
	}
	if raw := string(bytes.TrimSpace(r.Think)); raw == "true" || raw == "false" {
		out["enable_thinking"] = raw == "true"
	} else if oai.Asks(r.Think) { // "low", "medium", "high"
		out["reasoning_effort"] = r.Think
	}
	return &r, out, nil
}

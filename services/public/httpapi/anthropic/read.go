// Package anthropic translates Anthropic's Messages API into chats and back: the fields of a body become those of /v1/chat/completions,
// so that one decoder checks both. What only this API has, and what changes the answer's meaning, is refused by name; fields without an
// effect here, such as cache_control or context_management, are left out.
package anthropic

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// Attribution begins a system block that Claude Code changes with every request. It says who asks, not what, and would cost the whole
// prompt's prefill each turn.
const Attribution = "x-anthropic-billing-header:"

// Options of a translation.
type Options struct {
	KeepAttribution bool              // leave the block of Attribution in
	Ignored         func(name string) // is called with what has no effect; may be nil
	CountOnly       bool              // the body asks for the number of its tokens: max_tokens may be missing
	Strict          bool              // as of oai.Shape
}

// request is a body of /v1/messages, as far as it is read.
type request struct {
	Model        string          `json:"model"`
	MaxTokens    *oai.Int        `json:"max_tokens"`
	System       json.RawMessage `json:"system"`
	Messages     []message       `json:"messages"`
	Tools        []tool          `json:"tools"`
	ToolChoice   *choice         `json:"tool_choice"`
	Stop         []string        `json:"stop_sequences"`
	Temperature  *float64        `json:"temperature"`
	TopP         *float64        `json:"top_p"`
	TopK         *oai.Int        `json:"top_k"`
	Stream       bool            `json:"stream"`
	Thread       json.RawMessage `json:"thread"`
	Container    json.RawMessage `json:"container"`
	MCP          json.RawMessage `json:"mcp_servers"`
	Thinking     *struct{ Type string }
	Output       *output `json:"output_config"`
	OutputFormat *format `json:"output_format"`
}

type output struct {
	Effort string  `json:"effort"`
	Format *format `json:"format"`
}

type format struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"schema"`
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type tool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"input_schema"`
}

type choice struct {
	Type   string `json:"type"`
	Name   string `json:"name"`
	Single bool   `json:"disable_parallel_tool_use"`
}

// block is one part of a content.
type block struct {
	Type     string          `json:"type"`
	Text     string          `json:"text"`
	Thinking string          `json:"thinking"`
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Input    json.RawMessage `json:"input"`
	ToolUse  string          `json:"tool_use_id"`
	Content  json.RawMessage `json:"content"`
	IsError  bool            `json:"is_error"`
	Title    string          `json:"title"`
	Source   json.RawMessage `json:"source"`
}

// Chat returns a body of /v1/messages as a body of /v1/chat/completions. Errors: Invalid and Unsupported, with the field; *oai.Error for a
// thread; that of ctx, which is looked at before each message.
func Chat(ctx context.Context, body []byte, o Options) (json.RawMessage, error) {
	var r request
	if err := oai.Unmarshal(body, &r); err != nil {
		return nil, err
	}
	if o.Ignored == nil {
		o.Ignored = func(string) {}
	}
	if oai.Asks(r.Thread) { // the client's library sends the whole history after this answer
		e := oai.Refusal(http.StatusBadRequest, "thread_unsupported_request", "thread is not supported: send all messages")
		e.Param = "thread"
		return nil, e
	}
	switch {
	case len(r.Messages) == 0:
		return nil, oai.Bad("messages", "messages is missing or empty: want at least one message")
	case r.MaxTokens == nil && !o.CountOnly:
		return nil, oai.Bad("max_tokens", "max_tokens is missing: want 1 or more")
	case r.MaxTokens != nil && *r.MaxTokens < 1:
		return nil, oai.Bad("max_tokens", "max_tokens is %d: want 1 or more", *r.MaxTokens)
	}
	for name, raw := range map[string]json.RawMessage{"container": r.Container, "mcp_servers": r.MCP} {
		if oai.Asks(raw) {
			return nil, oai.Unsupported(name, "%s is not supported: leave it out", name)
		}
	}
	out := r.fields()
	rest, err := heard(o).Rest(body)
	if err != nil {
		return nil, err
	}
	for name, raw := range rest {
		out[name] = raw
	}
	messages, err := r.messages(ctx, o)
	if err != nil {
		return nil, err
	}
	out["messages"] = messages
	if err := r.tools(out, o); err != nil {
		return nil, err
	}
	return conversation.Marshal(out)
}

// fields returns the fields of a chat but the conversation and the tools.
func (r *request) fields() map[string]any {
	out := map[string]any{"stream": r.Stream}
	if r.Model != "" {
		out["model"] = r.Model
	}
	if r.MaxTokens != nil {
		out["max_tokens"] = *r.MaxTokens
	}
	if r.Temperature != nil {
		out["temperature"] = *r.Temperature
	}
	if r.TopP != nil {
		out["top_p"] = *r.TopP
	}
	if r.TopK != nil {
		out["top_k"] = *r.TopK
	}
	if len(r.Stop) > 0 {
		out["stop_sequences"] = r.Stop
	}
	if r.Thinking != nil && r.Thinking.Type != "adaptive" {
		out["enable_thinking"] = r.Thinking.Type == "enabled"
	}
	if r.Output != nil && r.Output.Effort != "" {
		out["reasoning_effort"] = r.Output.Effort
	}
	return out
}

// messages returns the conversation, the system text first.
func (r *request) messages(ctx context.Context, o Options) ([]oai.Sent, error) {
	var out oai.Turns
	system, err := systemText(r.System, o)
	if err != nil {
		return nil, err
	}
	if format := r.form(); format != nil && len(format.Schema) > 0 { // nothing forces the output yet
		o.Ignored("output_config.format")
		system = strings.TrimSpace(system + "\n\nAnswer with one JSON value that follows this JSON Schema, and with nothing else:\n" +
			string(format.Schema))
	}
	if system != "" {
		out.Add(oai.Sent{Role: "system", Content: system})
	}
	for i, m := range r.Messages {
		at := fmt.Sprintf("messages[%d]", i)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		blocks, err := blocksOf(at+".content", m.Content)
		if err != nil {
			return nil, err
		}
		switch m.Role {
		case "user":
			err = user(&out, at, blocks, o)
		case "assistant":
			var t oai.Sent
			if t, err = assistant(at, blocks, o); err == nil {
				out.Add(t)
			}
		case "system": // in the middle: few templates take that, and at the front it would change what is cached
			var text string
			if text, err = texts(at+".content", blocks, true, o); err == nil {
				if last := out.Last(); last != nil && last.Role == "user" {
					out.Say("\n\n", text)
				} else {
					out.Add(oai.Sent{Role: "user", Content: text})
				}
			}
		default:
			err = oai.Bad(at+".role", "%s.role is %.50q: want \"user\" or \"assistant\"", at, m.Role)
		}
		if err != nil {
			return nil, err
		}
	}
	return out.All(), nil
}

// form returns the form that the answer is to have, nil for any.
func (r *request) form() *format {
	if r.Output != nil && r.Output.Format != nil {
		return r.Output.Format
	}
	return r.OutputFormat
}

// systemText returns the system text: one, or the texts of blocks.
func systemText(raw json.RawMessage, o Options) (string, error) {
	blocks, err := blocksOf("system", raw)
	if err != nil {
		return "", err
	}
	blocks = slices.DeleteFunc(blocks, func(b block) bool {
		drop := !o.KeepAttribution && strings.HasPrefix(b.Text, Attribution)
		if drop {
			o.Ignored("system." + strings.TrimSuffix(Attribution, ":"))
		}
		return drop
	})
	return texts("system", blocks, true, o)
}

// blocksOf reads a content: a string, or blocks.
func blocksOf(at string, raw json.RawMessage) ([]block, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	if text, ok := oai.Text(raw); ok {
		return []block{{Type: "text", Text: text}}, nil
	}
	var out []block
	return out, oai.UnmarshalPart(at, raw, &out, "a string or an array of content blocks")
}

// texts joins the texts of blocks. own: the client can leave out what is none, so that is refused.
func texts(at string, blocks []block, own bool, o Options) (string, error) {
	var all []string
	for i, b := range blocks {
		text, err := b.asText(fmt.Sprintf("%s[%d]", at, i), own, o)
		if err != nil {
			return "", err
		}
		if text != "" {
			all = append(all, text)
		}
	}
	return strings.Join(all, "\n"), nil
}

// asText returns what a block says; of what is no text in results of tools and in earlier answers, see oai.Instead.
func (b block) asText(at string, own bool, o Options) (string, error) {
	switch b.Type {
	case "text", "":
		return b.Text, nil
	case "tool_reference", "redacted_thinking", "compaction": // a tool that was found is among the tools
		o.Ignored("messages[].content[]." + b.Type)
		return "", nil
	case "document":
		var source struct{ Type, Data string }
		if _ = json.Unmarshal(b.Source, &source); source.Type == "text" {
			return strings.TrimSpace(b.Title + "\n" + source.Data), nil
		}
	case "search_result", "container_upload":
	default:
		if own && !strings.HasSuffix(b.Type, "_tool_result") && !strings.HasSuffix(b.Type, "_tool_use") {
			return "", oai.Unsupported(at+".type", "%s.type is %.50q: only text is supported", at, b.Type)
		}
	}
	o.Ignored("messages[].content[]." + b.Type)
	holds := []string{b.Title, b.Text, b.Name, oai.Held(b.Source), oai.Held(b.Content)}
	if oai.Asks(b.Input) {
		holds = append(holds, string(b.Input))
	}
	return oai.Instead(b.Type, holds...), nil
}

// user adds a user's message: results of tools become messages of their own, before its text.
func user(out *oai.Turns, at string, blocks []block, o Options) error {
	var said []block
	for i, b := range blocks {
		if b.Type != "tool_result" {
			said = append(said, b)
			continue
		}
		content, err := blocksOf(fmt.Sprintf("%s.content[%d].content", at, i), b.Content)
		if err != nil {
			return err
		}
		text, err := texts(fmt.Sprintf("%s.content[%d].content", at, i), content, false, o)
		if err != nil {
			return err
		}
		if b.IsError && text == "" {
			text = "error"
		}
		out.Add(oai.Sent{Role: "tool", Content: text, CallID: b.ToolUse})
	}
	text, err := texts(at+".content", said, true, o)
	if err != nil {
		return err
	}
	if text != "" || len(said) > 0 || len(blocks) == 0 {
		out.Add(oai.Sent{Role: "user", Content: text})
	}
	return nil
}

// assistant returns an assistant's message.
func assistant(at string, blocks []block, o Options) (oai.Sent, error) {
	t := oai.Sent{Role: "assistant"}
	var said []block
	var thoughts []string
	for i, b := range blocks {
		switch b.Type {
		case "thinking":
			thoughts = append(thoughts, b.Thinking)
		case "tool_use":
			if b.Name == "" {
				field := fmt.Sprintf("%s.content[%d].name", at, i)
				return t, oai.Bad(field, "%s is missing: want the name of the tool that was called", field)
			}
			t.ToolCalls = append(t.ToolCalls, oai.SentCall(b.ID, b.Name, b.Input))
		default:
			said = append(said, b)
		}
	}
	t.Reasoning = strings.Join(thoughts, "")
	var err error
	t.Content, err = texts(at+".content", said, false, o)
	return t, err
}

// tools adds the tools and the choice among them.
func (r *request) tools(out map[string]any, o Options) error {
	var all []conversation.Tool
	for i, t := range r.Tools {
		switch {
		case t.Type != "" && t.Type != "custom" && len(t.Schema) == 0: // what Anthropic's servers carry out
			o.Ignored("tools[].type=" + t.Type)
		case t.Name == "":
			return oai.Bad(fmt.Sprintf("tools[%d].name", i), "tools[%d].name is missing: want the tool's name", i)
		default:
			all = append(all, conversation.Tool{Type: "function",
				Function: conversation.Function{Name: t.Name, Description: t.Description, Parameters: t.Schema}})
		}
	}
	if len(all) > 0 {
		out["tools"] = all
	}
	c := r.ToolChoice
	switch {
	case c == nil:
		return nil
	case c.Type == "tool":
		out["tool_choice"] = map[string]any{"type": "function", "function": map[string]string{"name": c.Name}}
	case c.Type == "any" || c.Type == "auto" || c.Type == "none":
		out["tool_choice"] = c.Type
	default:
		return oai.Bad("tool_choice.type", "tool_choice.type is %.50q: want \"auto\", \"any\", \"tool\" or \"none\"", c.Type)
	}
	if c.Single {
		out["parallel_tool_calls"] = false
	}
	return nil
}

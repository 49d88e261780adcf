// Package responses translates OpenAI's Responses API into chats and back, without a memory of earlier answers: the fields of a body become
// those of /v1/chat/completions, so that one decoder checks both. What only this API has, and what changes the answer's meaning, is refused
// by name; fields without an effect here, such as store or include, are left out.
package responses

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// request is a body of /v1/responses, as far as it is read.
type request struct {
	Model        string          `json:"model"`
	Input        json.RawMessage `json:"input"`
	Instructions json.RawMessage `json:"instructions"`
	Tools        []tool          `json:"tools"`
	ToolChoice   json.RawMessage `json:"tool_choice"`
	Parallel     *bool           `json:"parallel_tool_calls"`
	MaxTokens    *oai.Int        `json:"max_output_tokens"`
	Temperature  *float64        `json:"temperature"`
	TopP         *float64        `json:"top_p"`
	Stream       bool            `json:"stream"`
	Previous     json.RawMessage `json:"previous_response_id"`
	Conversation json.RawMessage `json:"conversation"`
	Prompt       json.RawMessage `json:"prompt"`
	Background   bool            `json:"background"`
	Reasoning    *struct {
		Effort *string `json:"effort"`
	} `json:"reasoning"`
	Text *struct {
		Format *format `json:"format"`
	} `json:"text"`
	Metadata   json.RawMessage `json:"metadata"`
	Store      bool            `json:"store"`
	Truncation string          `json:"truncation"`
}

type format struct {
	Type        string          `json:"type"`
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

type tool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Tools       []tool          `json:"tools"`  // of a namespace
	Format      json.RawMessage `json:"format"` // of a custom tool's text
}

// item is one entry of the input.
type item struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Summary   []part          `json:"summary"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Namespace string          `json:"namespace"`
	Arguments string          `json:"arguments"`
	Input     string          `json:"input"`
	Output    json.RawMessage `json:"output"`
}

type part struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Refusal string `json:"refusal"`

	Filename string `json:"filename"`
}

// Offered is a tool as the model is told of it.
type Offered struct {
	Name, Namespace string // by which the client knows it
	Custom          bool   // it takes a text: the argument "input" of a function
}

// Plan is a body as a chat, and what its answer needs.
type Plan struct {
	Chat  json.RawMessage // a body of /v1/chat/completions
	Tools map[string]Offered
	Echo  Echo

	told map[[2]string]string // by which name the model knows a tool, by the client's namespace and name
}

// Custom returns the tools that take a text, by the names that the model knows.
func (p *Plan) Custom() map[string]bool {
	all := map[string]bool{}
	for name, t := range p.Tools {
		all[name] = t.Custom
	}
	return all
}

// Echo is what an answer repeats of its request.
type Echo struct {
	Reasoning struct {
		Effort  *string `json:"effort"`
		Summary *string `json:"summary"`
	} `json:"reasoning"`
	Text struct {
		Format format `json:"format"`
	} `json:"text"`
	Metadata     json.RawMessage `json:"metadata"`
	Instructions json.RawMessage `json:"instructions"`
	MaxTokens    *oai.Int        `json:"max_output_tokens"`
	Parallel     bool            `json:"parallel_tool_calls"`
	ToolChoice   json.RawMessage `json:"tool_choice"`
	Tools        json.RawMessage `json:"tools"`
	Temperature  *float64        `json:"temperature"`
	TopP         *float64        `json:"top_p"`
}

// Read translates a body. ignored is called with what has no effect. Errors: Invalid and Unsupported, with the field; that
// of ctx, which is looked at before each item.
func Read(ctx context.Context, body []byte, strict bool, ignored func(name string)) (*Plan, error) {
	var r request
	if err := oai.Unmarshal(body, &r); err != nil {
		return nil, err
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	var sent struct{ Tools json.RawMessage }
	if r.Tools != nil {
		_ = json.Unmarshal(body, &sent)
	}
	p := &Plan{Tools: map[string]Offered{}, told: map[[2]string]string{}}
	p.Echo = Echo{Instructions: r.Instructions, MaxTokens: r.MaxTokens, Parallel: true, ToolChoice: r.ToolChoice,
		Tools: sent.Tools, Temperature: r.Temperature, TopP: r.TopP}
	out := map[string]any{"stream": r.Stream}
	if r.Model != "" {
		out["model"] = r.Model
	}
	if r.MaxTokens != nil {
		out["max_output_tokens"] = *r.MaxTokens
	}
	if r.Temperature != nil {
		out["temperature"] = *r.Temperature
	}
	if r.TopP != nil {
		out["top_p"] = *r.TopP
	}
	if r.Reasoning != nil && r.Reasoning.Effort != nil {
		out["reasoning_effort"] = *r.Reasoning.Effort
	}
	if r.Parallel != nil {
		out["parallel_tool_calls"], p.Echo.Parallel = *r.Parallel, *r.Parallel
	}
	rest, err := heard(strict, ignored).Rest(body)
	if err != nil {
		return nil, err
	}
	for name, raw := range rest {
		out[name] = raw
	}
	if err := p.Echo.more(&r, rest, ignored); err != nil {
		return nil, err
	}
	p.offer(&r, out, ignored)
	if err := p.choose(&r, out); err != nil {
		return nil, err
	}
	messages, err := p.messages(ctx, &r, ignored)
	if err != nil {
		return nil, err
	}
	out["messages"] = messages
	p.Chat, err = conversation.Marshal(out)
	return p, err
}

// check refuses what needs a memory of earlier answers.
func (r *request) check() error {
	for name, raw := range map[string]json.RawMessage{"previous_response_id": r.Previous, "conversation": r.Conversation,
		"prompt": r.Prompt} {
		if oai.Asks(raw) {
			return oai.Unsupported(name, "%s is not supported, this server keeps no answers: send all items as input", name)
		}
	}
	switch {
	case r.Background:
		return oai.Unsupported("background", "background is true: only false is supported")
	}
	return nil
}

// offer adds the tools: functions, those of namespaces, and custom ones as functions of a text.
func (p *Plan) offer(r *request, out map[string]any, ignored func(string)) {
	var all []conversation.Tool
	add := func(t tool, namespace string) {
		name := t.Name
		if _, taken := p.Tools[name]; taken && namespace != "" {
			name = namespace + "__" + name
		}
		f := conversation.Tool{Type: "function", Function: conversation.Function{Name: name, Description: t.Description,
			Parameters: t.Parameters}}
		if t.Type == "custom" {
			f = conversation.CustomTool(name, t.Description, t.Format)
		}
		p.Tools[name] = Offered{t.Name, namespace, t.Type == "custom"}
		p.told[[2]string{namespace, t.Name}] = name
		all = append(all, f)
	}
	for _, t := range r.Tools {
		switch {
		case (t.Type == "function" || t.Type == "custom" || t.Type == "") && t.Name != "":
			add(t, "")
		case t.Type == "namespace":
			for _, inner := range t.Tools {
				if inner.Name != "" && (inner.Type == "function" || inner.Type == "custom" || inner.Type == "") {
					add(inner, t.Name)
				} else {
					ignored("tools[].tools[].type=" + inner.Type)
				}
			}
		default:
			ignored("tools[].type=" + t.Type)
		}
	}
	if len(all) > 0 {
		out["tools"] = all
	}
}

// offered returns the name by which the model knows a tool of the client's.
func (p *Plan) offered(namespace, name string) string {
	if told, ok := p.told[[2]string{namespace, name}]; ok {
		return told
	}
	return name
}

// choose adds the choice among the tools.
func (p *Plan) choose(r *request, out map[string]any) error {
	if !oai.Asks(r.ToolChoice) {
		p.Echo.ToolChoice = json.RawMessage(`"auto"`)
		return nil
	}
	var mode string
	if json.Unmarshal(r.ToolChoice, &mode) == nil {
		out["tool_choice"] = mode
		return nil
	}
	var c struct {
		Type, Name, Mode, Namespace string
		Tools                       []struct{ Type, Name, Namespace string }
	}
	if err := oai.UnmarshalPart("tool_choice", r.ToolChoice, &c, "a string or an object"); err != nil {
		return err
	}
	type named struct {
		Name string `json:"name"`
	}
	switch {
	case c.Type == "allowed_tools":
		var only []named
		for _, t := range c.Tools {
			if name := p.offered(t.Namespace, t.Name); p.Tools[name] != (Offered{}) {
				only = append(only, named{name})
			}
		}
		if len(only) > 0 {
			out["tool_choice"] = map[string]any{"type": "allowed_tools", "mode": c.Mode, "tools": only}
		}
	case c.Name != "":
		out["tool_choice"] = map[string]any{"type": "function", "function": named{p.offered(c.Namespace, c.Name)}}
	default:
		return oai.Unsupported("tool_choice.type", "tool_choice.type is %.50q: want \"function\", \"custom\" or \"allowed_tools\"", c.Type)
	}
	return nil
}

// messages returns the conversation. What stands for the system at its beginning is one message; later, the user says it.
func (p *Plan) messages(ctx context.Context, r *request, ignored func(string)) ([]oai.Sent, error) {
	var turns oai.Turns
	instructions, err := text("instructions", r.Instructions)
	if err != nil {
		return nil, err
	}
	if f := r.format(); f != nil && f.Type != "text" { // nothing forces the output yet
		ignored("text.format")
		ask := "Answer with one JSON object, and with nothing else."
		if len(f.Schema) > 0 {
			ask = "Answer with one JSON value that follows this JSON Schema, and with nothing else:\n" + string(f.Schema)
		}
		instructions = strings.TrimSpace(instructions + "\n\n" + ask)
	}
	if instructions != "" {
		turns.Add(oai.Sent{Role: "system", Content: instructions})
	}
	if plain, ok := oai.Text(r.Input); ok || string(r.Input) == "null" {
		turns.Add(oai.Sent{Role: "user", Content: plain})
		return turns.All(), nil
	}
	var items []json.RawMessage
	if len(r.Input) > 0 {
		if err := oai.UnmarshalPart("input", r.Input, &items, "a string or an array of items"); err != nil {
			return nil, err
		}
	}
	h := history{plan: p, turns: &turns, ignored: ignored}
	for i, raw := range items {
		at := fmt.Sprintf("input[%d]", i)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var it item
		err := oai.UnmarshalPart(at, raw, &it, "an object")
		if err != nil && (it.Type == "" || slices.Contains(itemTypes, it.Type)) {
			return nil, err
		}
		if err := h.add(at, it, raw); err != nil {
			return nil, err
		}
	}
	if turns.Last() == nil {
		return nil, oai.Bad("input", "input has nothing to answer: want a string, or an array with at least one message")
	}
	return turns.All(), nil
}

// itemTypes are those whose fields are read one by one.
var itemTypes = []string{"message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning",
	"item_reference"}

// history becomes the messages of a chat, item by item.
type history struct {
	plan    *Plan
	turns   *oai.Turns
	thought []string // of the assistant's turn that comes next
	ignored func(string)
}

// assistant returns the turn that the calls and texts of one answer share.
func (h *history) assistant() *oai.Sent {
	if last := h.turns.Last(); last == nil || last.Role != "assistant" {
		h.turns.Add(oai.Sent{Role: "assistant"})
	}
	for _, text := range h.thought {
		h.turns.Think(text)
	}
	h.thought = nil
	return h.turns.Last()
}

// add adds an item.
func (h *history) add(at string, it item, raw json.RawMessage) error {
	switch it.Type {
	case "message", "":
		said, err := text(at+".content", it.Content)
		if err != nil {
			return err
		}
		return h.says(at, it.Role, said)
	case "function_call", "custom_tool_call":
		name, arguments := h.plan.offered(it.Namespace, it.Name), json.RawMessage(it.Arguments)
		if it.Type == "custom_tool_call" {
			arguments = conversation.CustomArguments(it.Input)
		}
		t := h.assistant()
		t.ToolCalls = append(t.ToolCalls, oai.SentCall(it.CallID, name, arguments))
	case "function_call_output", "custom_tool_call_output":
		result, err := h.result(at+".output", it.Output)
		if err != nil {
			return err
		}
		h.turns.Add(oai.Sent{Role: "tool", Content: result, CallID: it.CallID})
	case "reasoning":
		all := it.Summary
		var content []part
		if bytes.HasPrefix(it.Content, []byte("[")) && oai.Asks(it.Content) {
			if err := oai.UnmarshalPart(at+".content", it.Content, &content, "an array of parts"); err != nil {
				return err
			}
			all = content
		}
		for _, s := range all {
			h.thought = append(h.thought, s.Text)
		}
	case "item_reference":
		if !strings.HasPrefix(it.ID, "rs_") { // else a thought, without which the answer stays the same
			return oai.Unsupported(at+".type", "%s is a reference, and this server keeps no items: send the item itself", at)
		}
		h.ignored("input[].type=" + it.Type)
	default: // what the provider's own tools have done
		h.ignored("input[].type=" + it.Type)
		return h.done(at, it.Type, raw)
	}
	return nil
}

// done adds what a provider's own tool has done, as a text: calls are the assistant's, what comes back from the client is the user's.
func (h *history) done(at, kind string, raw json.RawMessage) error {
	holds := oai.Held(raw)
	switch {
	case strings.HasSuffix(kind, "_output"), strings.HasSuffix(kind, "_response"):
		return h.says(at, "user", oai.Instead(kind, holds))
	case holds != "":
		return h.says(at, "assistant", oai.Instead(kind, holds))
	}
	return nil
}

// says adds a message.
func (h *history) says(at, role, said string) error {
	switch role {
	case "assistant":
		h.assistant()
		h.turns.Say("\n", said)
	case "system", "developer":
		switch last := h.turns.Last(); {
		case last == nil:
			h.turns.Add(oai.Sent{Role: "system", Content: said})
		case last.Role == "system" && h.turns.First() || last.Role == "user":
			h.turns.Say("\n\n", said)
		default:
			h.turns.Add(oai.Sent{Role: "user", Content: said})
		}
	case "user":
		h.turns.Add(oai.Sent{Role: "user", Content: said})
	default:
		return oai.Bad(at+".role", "%s.role is %.50q: want \"user\", \"assistant\", \"system\" or \"developer\"", at, role)
	}
	return nil
}

// format returns the form that the answer is to have, nil for any.
func (r *request) format() *format {
	if r.Text == nil {
		return nil
	}
	return r.Text.Format
}

// textTypes are the types of parts that are text.
var textTypes = []string{"", "text", "input_text", "output_text", "refusal"}

// text reads a content: a string, or parts, whose texts are joined by line breaks.
func text(at string, raw json.RawMessage) (string, error) { return texts(at, raw, nil) }

// result reads what a tool has returned: see oai.Instead.
func (h *history) result(at string, raw json.RawMessage) (string, error) {
	return texts(at, raw, func(p part) string {
		h.ignored("input[].output[]." + p.Type)
		return oai.Instead(p.Type, p.Filename)
	})
}

// texts is text with instead for parts that are none; nil: they are refused.
func texts(at string, raw json.RawMessage, instead func(part) string) (string, error) {
	if !oai.Asks(raw) {
		return "", nil
	}
	if plain, ok := oai.Text(raw); ok {
		return plain, nil
	}
	var parts []part
	if err := oai.UnmarshalPart(at, raw, &parts, "a string or an array of parts"); err != nil {
		return "", err
	}
	var all []string
	for i, p := range parts {
		switch {
		case slices.Contains(textTypes, p.Type):
			all = append(all, p.Text+p.Refusal)
		case instead != nil:
			all = append(all, instead(p))
		default:
			return "", oai.Unsupported(fmt.Sprintf("%s[%d].type", at, i), "%s[%d].type is %.50q: only text is supported", at, i, p.Type)
		}
	}
	return strings.Join(all, "\n"), nil
}

package public

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/conversation"
)

const (
	maxTools  = 1024
	maxSchema = 1 << 20 // bytes of one tool's parameters
)

// readChat decodes what a conversation asks for; d fills in what it leaves out. chat, which may be nil, says what its template reads;
// ignored are the fields that mean nothing to it. Errors: Invalid, with the field.
func readChat(r *tandemv1.ChatRequest, d ask.Defaults, chat conversation.Chat) (q *ask.Request, ignored []string, err error) {
	if q, err = asked(ask.Chat, d, r, r.MaxTokens); err != nil {
		return nil, nil, err
	}
	if q.Messages, err = readMessages(r.GetMessages()); err != nil {
		return nil, nil, err
	}
	q.GoesOn = r.GetContinueFinalMessage()
	if r.ParallelToolCalls != nil {
		q.Parallel = r.GetParallelToolCalls()
		q.Say("parallel_tool_calls", "parallel_tool_calls")
	}
	if err := readTools(q, r); err != nil {
		return nil, nil, err
	}
	if ignored, err = readVariables(q, r, func(name string) bool { return chat != nil && chat.Reads(name) }); err != nil {
		return nil, nil, err
	}
	return q, ignored, q.Check(d, func(name string) { ignored = append(ignored, name) })
}

func readMessages(all []*tandemv1.ChatMessage) ([]conversation.Message, error) {
	switch n := len(all); {
	case n == 0:
		return nil, wrong("messages", "messages is empty: want at least one message")
	case n > conversation.Most:
		return nil, wrong("messages", "messages has %d elements: at most %d allowed", n, conversation.Most)
	}
	out := make([]conversation.Message, len(all))
	for i, m := range all {
		at := fmt.Sprintf("messages[%d]", i)
		out[i] = conversation.Message{Role: m.GetRole(), Content: m.GetContent(), Name: m.GetName(), Reasoning: m.GetThought(),
			ToolCallID: m.GetToolCallId()}
		var history []conversation.ToolCall
		for k, c := range m.GetToolCalls() {
			field := fmt.Sprintf("%s.tool_calls[%d]", at, k)
			if c.GetName() == "" {
				return nil, wrong(field+".name", "%s.name is missing: want the tool's name", field)
			}
			arguments, err := object(field+".arguments", c.GetArguments())
			if err != nil {
				return nil, err
			}
			history = append(history, conversation.ToolCall{ID: c.GetId(), Type: "function",
				Function: conversation.FunctionCall{Name: c.GetName(), Arguments: arguments}})
		}
		if len(history) > 0 {
			out[i].ToolCalls, _ = conversation.Marshal(history) // of strings alone
		}
		if err := out[i].Check(at, true); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// object returns a text that is a JSON object, "{}" for none. Errors: Invalid, with the field.
func object(field, text string) (string, error) {
	if text == "" {
		return "{}", nil
	}
	switch kind, err := conversation.KindOf(text); {
	case err != nil:
		return "", wrong(field, "%s is not JSON: %w", field, err)
	case kind != "an object":
		return "", wrong(field, "%s is %s: want a JSON object", field, kind)
	}
	return text, nil
}

// readTools decodes the tools, and the choice among them.
func readTools(q *ask.Request, r *tandemv1.ChatRequest) error {
	if n := len(r.GetTools()); n > maxTools {
		return wrong("tools", "tools has %d elements: at most %d allowed", n, maxTools)
	}
	for i, t := range r.GetTools() {
		at := fmt.Sprintf("tools[%d]", i)
		f := conversation.Function{Name: t.GetName(), Description: t.GetDescription()}
		switch n := len(t.GetParameters()); {
		case f.Name == "":
			return wrong(at+".name", "%s.name is missing: want the function's name", at)
		case n > maxSchema:
			return wrong(at+".parameters", "%s.parameters has %d bytes: at most %d allowed", at, n, maxSchema)
		case n > 0:
			schema, err := object(at+".parameters", t.GetParameters())
			if err != nil {
				return err
			}
			f.Parameters = json.RawMessage(schema)
		}
		raw, err := conversation.Marshal(conversation.Tool{Type: "function", Function: f})
		if err != nil {
			return wrong(at, "%s: %w", at, err)
		}
		q.Tools = append(q.Tools, ask.Tool{Name: f.Name, JSON: raw})
	}
	c := r.GetToolChoice()
	if q.Choice.Only = c.GetNames(); len(q.Choice.Only) > maxTools {
		return wrong("tool_choice.names", "tool_choice.names has %d elements: at most %d allowed", len(q.Choice.Only), maxTools)
	}
	switch mode := c.GetMode(); {
	case mode == "":
		q.Choice.Must = len(q.Choice.Only) > 0
		return nil
	case !slices.Contains([]string{"auto", "none", "required"}, mode):
		return wrong("tool_choice.mode", "tool_choice.mode is %.50q: want \"auto\", \"none\" or \"required\"", mode)
	default:
		return q.Choice.Mode("tool_choice.mode", mode)
	}
}

// readVariables decodes what a request tells the chat template, and lists what the template does not read.
func readVariables(q *ask.Request, r *tandemv1.ChatRequest, reads func(string) bool) (ignored []string, err error) {
	if r.TemplateVariables != nil {
		const field = "template_variables"
		all, err := conversation.ParseVariables(field, r.GetTemplateVariables())
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if reads(name) {
				q.Variables.Set(name, all[name])
			} else {
				ignored = append(ignored, field+"."+name)
			}
		}
	}
	switch {
	case r.EnableThinking == nil:
	case reads("enable_thinking"):
		q.Variables.Think(r.GetEnableThinking())
	default:
		ignored = append(ignored, "enable_thinking")
	}
	known := reads("reasoning_effort") || reads("enable_thinking")
	if r.ReasoningEffort != nil && (!known || !q.Variables.Effort(r.GetReasoningEffort(), reads)) {
		ignored = append(ignored, "reasoning_effort")
	}
	return ignored, nil
}

// ofMessages returns err with messages blamed for what is wrong with the prompt that they make.
func ofMessages(err error) error {
	var e *tandem.Error
	if tandem.FieldOf(err) != "prompt" || !errors.As(err, &e) {
		return err
	}
	located := *e
	located.Field = "messages"
	return &located
}

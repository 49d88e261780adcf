package oai

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/tandem-llm/tandem/services/conversation"
)

// What packages need that translate another API into bodies of chats.

// Bad returns the error of a field: what it is, and what would be right.
func Bad(param, format string, args ...any) error { return bad(param, format, args...) }

// Unsupported returns the error of a field that asks for what tandem does not do.
func Unsupported(param, format string, args ...any) error { return unsupported(param, format, args...) }

// Unmarshal decodes a body of an API into to. Errors: Invalid, with the field that has another type.
func Unmarshal(body []byte, to any) error {
	err := json.Unmarshal(body, to)
	var t *json.UnmarshalTypeError
	switch {
	case errors.As(err, &t) && t.Field != "":
		return typeError(t)
	case err != nil:
		return bad("", "the body is not a JSON object: %w", err)
	}
	return nil
}

// Asks reports whether a field has a value that asks for something.
func Asks(raw json.RawMessage) bool {
	return !slices.Contains([]string{"", "null", `""`, "[]", "{}", "false"}, string(bytes.TrimSpace(raw)))
}

// Sent is a message of a body of a chat.
type Sent struct {
	Role      string                  `json:"role"`
	Content   string                  `json:"content"`
	Reasoning string                  `json:"reasoning_content,omitempty"`
	ToolCalls []conversation.ToolCall `json:"tool_calls,omitempty"`
	CallID    string                  `json:"tool_call_id,omitempty"`
	Name      string                  `json:"name,omitempty"` // of the tool that answers
}

// SentCall returns a call in a message that is sent. Without arguments it has an empty object.
func SentCall(id, name string, arguments json.RawMessage) conversation.ToolCall {
	if !Asks(arguments) {
		arguments = json.RawMessage("{}")
	}
	return conversation.ToolCall{ID: id, Type: "function", Function: conversation.FunctionCall{Name: name, Arguments: string(arguments)}}
}

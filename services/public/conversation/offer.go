package conversation

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/tandem-llm/tandem/text/grammar"
)

// Tool is a function as Conversation.Tools has it.
type Tool struct {
	Type     string   `json:"type"` // "function"
	Function Function `json:"function"`
}

// Function is what a model is told of a function.
type Function struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"` // JSON Schema
}

// ToolCall is a call of a tool as Message.ToolCalls has it, or a piece of one in an answer.
type ToolCall struct {
	Index    *int         `json:"index,omitempty"` // which call, in a piece of an answer
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"` // "function", or in an answer "custom"
	Function FunctionCall `json:"function,omitzero"`
	Custom   *CustomCall  `json:"custom,omitempty"` // what is called, in an answer, of a tool that takes a text
}

// CustomCall is a call of a tool that takes a text.
type CustomCall struct {
	Name  string `json:"name,omitempty"`
	Input string `json:"input"`
}

// FunctionCall is a call of a function.
type FunctionCall struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// Marshal is json.Marshal without escapes for HTML.
func Marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

// Told returns messages whose system message ends with text.
func Told(messages []Message, text string) []Message {
	if len(messages) == 0 || messages[0].Role != "system" {
		return append([]Message{{Role: "system", Content: text}}, messages...)
	}
	messages = slices.Clone(messages)
	messages[0].Content += "\n\n" + text
	return messages
}

// inForm asks for the form of an answer. It is forced as well, but a model that knows of it writes better answers.
func inForm(of *grammar.Spec) string {
	switch {
	case len(of.Schema) > 0:
		return "Answer with one JSON value that follows this JSON Schema, and with nothing else:\n" + string(of.Schema)
	case of.Object:
		return "Answer with one JSON object, and with nothing else."
	case len(of.Choices) > 0:
		all, _ := Marshal(of.Choices) // of strings
		return "Answer with one of these texts, and with nothing else:\n" + string(all)
	}
	return "Answer with a text that this regular expression matches, and with nothing else:\n" + of.Regex
}

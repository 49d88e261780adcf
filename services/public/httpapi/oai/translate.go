package oai

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/services/public/conversation"
)

// What packages need that translate another API into bodies of chats.

// Bad returns the error of a field: what it is, and what would be right.
func Bad(param, format string, args ...any) error { return bad(param, format, args...) }

// Unsupported returns the error of a field that asks for what tandem does not do.
func Unsupported(param, format string, args ...any) error { return unsupported(param, format, args...) }

// Asks reports whether a field has a value that asks for something.
func Asks(raw json.RawMessage) bool {
	return !slices.Contains([]string{"", "null", `""`, "[]", "{}", "false"}, string(bytes.TrimSpace(raw)))
}

// Text returns a value that is a string. What is none is not decoded, however large it is.
func Text(raw json.RawMessage) (text string, ok bool) {
	ok = bytes.HasPrefix(raw, []byte{'"'}) && json.Unmarshal(raw, &text) == nil
	return text, ok
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

// Turns collects the messages of a conversation. What is said in several pieces is joined once.
type Turns struct {
	all           []Sent
	said, thought []string // of the last message, beside what it has
}

// Add begins a message.
func (t *Turns) Add(s Sent) {
	t.join()
	t.all = append(t.all, s)
}

// Last returns the last message, nil if there is none. What was said in pieces is not in it yet.
func (t *Turns) Last() *Sent {
	if len(t.all) == 0 {
		return nil
	}
	return &t.all[len(t.all)-1]
}

// First reports whether there is one message alone.
func (t *Turns) First() bool { return len(t.all) == 1 }

// Say adds a text to the last message, behind a separator if it has one already.
func (t *Turns) Say(separator, text string) {
	switch {
	case t.Last().Content != "" || len(t.said) > 0:
		t.said = append(t.said, separator, text)
	case text != "":
		t.said = append(t.said, text)
	}
}

// Think adds a thought to the last message.
func (t *Turns) Think(text string) { t.thought = append(t.thought, text) }

// All returns the messages.
func (t *Turns) All() []Sent {
	t.join()
	return t.all
}

func (t *Turns) join() {
	if last := t.Last(); last != nil {
		last.Content = joined(last.Content, t.said)
		last.Reasoning = joined(last.Reasoning, t.thought)
	}
	t.said, t.thought = t.said[:0], t.thought[:0]
}

func joined(text string, more []string) string {
	if len(more) == 0 {
		return text
	}
	return text + strings.Join(more, "")
}

// SentCall returns a call in a message that is sent. Without arguments it has an empty object.
func SentCall(id, name string, arguments json.RawMessage) conversation.ToolCall {
	if !Asks(arguments) {
		arguments = json.RawMessage("{}")
	}
	return conversation.ToolCall{ID: id, Type: "function", Function: conversation.FunctionCall{Name: name, Arguments: string(arguments)}}
}

// Package conversation is what the front ends share about chats: a conversation as a value, how it becomes a prompt (Room), and how what
// the model writes becomes a turn of the assistant (Turn). It knows no wire.
package conversation

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/text/calls"
	"github.com/tandem-llm/tandem/text/grammar"
)

// Conversation is what a prompt is made of by the model's chat template.
type Conversation struct {
	Messages  []Message
	Tools     json.RawMessage // a JSON array, empty for none
	Custom    map[string]bool // names of the tools that take a text: see CustomTool
	Must      bool            // the model is to call one of the tools
	Single    bool            // and not several
	Answer    *grammar.Spec   // the answers that are allowed; nil: all
	Strict    map[string]bool // names of the tools whose arguments are to follow their schema
	Continue  bool            // the last message is the beginning of the answer
	Variables Variables
}

// Message is one turn of a conversation.
type Message struct {
	Role    string // "system", "user", "assistant" or "tool"
	Content string

	Name       string
	Reasoning  string
	ToolCallID string
	ToolCalls  json.RawMessage // a JSON array, empty for none
}

// Most is the number of messages that a conversation may have.
const Most = 16 << 10

var roles = []string{"system", "developer", "user", "assistant", "tool"}

const wantRole = "want system, developer, user, assistant or tool"

// Check refuses a message that no template can render, and gives a developer the role that most templates know. at is the message's path
// in its request, for errors; said: it has a content, if only an empty one. Errors: Invalid, with the field.
func (m *Message) Check(at string, said bool) error {
	switch {
	case m.Role == "":
		return wrong(at+".role", "%s.role is missing: "+wantRole, at)
	case !slices.Contains(roles, m.Role):
		return wrong(at+".role", "%s.role is %.50q: "+wantRole, at, m.Role)
	case len(m.ToolCalls) > 0 && m.Role != "assistant":
		return wrong(at+".tool_calls", "%s.tool_calls: only the assistant calls tools, the role is %s", at, m.Role)
	case !said && len(m.ToolCalls) == 0:
		return wrong(at+".content", "%s.content is missing: want text", at)
	case m.Role == "developer":
		m.Role = "system" // the newer name of the same, which few templates know
	}
	return nil
}

// Size returns the bytes of all texts of a message.
func (m *Message) Size() int {
	return len(m.Role) + len(m.Content) + len(m.Name) + len(m.Reasoning) + len(m.ToolCallID) + len(m.ToolCalls)
}

// Size returns the bytes of all texts of a conversation.
func (c *Conversation) Size() int {
	n := len(c.Tools)
	if c.Answer != nil {
		n += len(c.Answer.Schema)
	}
	for i := range c.Messages {
		n += c.Messages[i].Size()
	}
	return n
}

// Ended returns c made ready for the answer by its last message: if that is a text of the assistant, the answer continues it; an empty one
// is dropped.
func (c Conversation) Ended() Conversation {
	if n := len(c.Messages) - 1; n > 0 && c.Messages[n].Role == "assistant" && len(c.Messages[n].ToolCalls) == 0 {
		if c.Continue = c.Messages[n].Content != ""; !c.Continue {
			c.Messages = c.Messages[:n]
		}
	}
	return c
}

// CanContinue refuses to continue the last message if it is not the assistant's; field and value are how the request asks for it.
func CanContinue(messages []Message, field string, value bool) error {
	if last := len(messages) - 1; last < 1 || messages[last].Role != "assistant" {
		return wrong(field, "%s is %v and the last message is not the assistant's: want one to continue", field, value)
	}
	return nil
}

// Chat turns conversations into prompts. Safe for concurrent use.
type Chat interface {
	// Prompt returns the text of a conversation that ends with the beginning of the assistant's turn. Errors: Invalid (the
	// template refuses it, or passes a limit), Unsupported (there is no template that can be run), Deadline, Canceled.
	Prompt(ctx context.Context, of Conversation) (Prompt, error)

	// Reads reports whether the template reads a variable.
	Reads(name string) bool
}

// Prompt is a conversation as a text for the model to continue.
type Prompt struct {
	Text   string
	Tokens func() []tandem.Token // makes its tokens
	Output Output
}

// Output says how the answer to a conversation is read.
type Output struct {
	Reader   func() *calls.Reader // makes the reader of one answer; nil: an answer is text as it comes
	Written  bool                 // the reader needs control tokens by their written form
	ShortIDs bool                 // ids of calls are nine letters and digits
	Custom   map[string]bool      // as in Conversation; set by Room, not by Chat
	Allowed  *grammar.Spec        // which outputs are allowed, for what the conversation asks; nil: all
	Loose    []calls.Loose        // tools whose arguments are not held to their schema, although that was asked for
}

// wrong returns an error that blames a field of a request.
func wrong(field, format string, args ...any) error {
	return &tandem.Error{Kind: tandem.Invalid, Field: field, Err: fmt.Errorf(format, args...)}
}

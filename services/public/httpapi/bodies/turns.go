package bodies

import (
	"encoding/json"
	"strings"

	"github.com/tandem-llm/tandem/services/public/conversation"
)

// turns collects the messages of a conversation. What is said in several pieces is joined once.
type turns struct {
	field         string // the field that holds the turns
	all           []turn
	said, thought []string // further texts and thoughts for the last message
}

// turn is a message.
type turn struct {
	conversation.Message
	calls []conversation.ToolCall
	of    []string // the namespaces of calls' tools, of the Responses API
	at    string   // its path in the body
}

// add begins a message.
func (t *turns) add(at string, m conversation.Message) *turn {
	t.join()
	t.all = append(t.all, turn{Message: m, at: at})
	return t.last()
}

// last returns the last message, nil if there is none. What was said in pieces is not in it yet.
func (t *turns) last() *turn {
	if len(t.all) == 0 {
		return nil
	}
	return &t.all[len(t.all)-1]
}

// say adds a text to the last message, behind a separator if it has one already.
func (t *turns) say(separator, text string) {
	switch {
	case t.last().Content != "" || len(t.said) > 0:
		t.said = append(t.said, separator, text)
	case text != "":
		t.said = append(t.said, text)
	}
}

// join completes the last message.
func (t *turns) join() {
	if last := t.last(); last != nil {
		last.Content += strings.Join(t.said, "")
		last.Reasoning += strings.Join(t.thought, "")
	}
	t.said, t.thought = t.said[:0], t.thought[:0]
}

// system puts a text in front of the conversation.
func (t *turns) system(text string) {
	t.join()
	t.all = append([]turn{{Message: conversation.Message{Role: "system", Content: text}}}, t.all...)
}

// messages returns the messages, whose texts are together bounded by most. named gives calls' tools their names for the model; nil: they
// have them.
func (t *turns) messages(most int, named func(namespace, name string) string) ([]conversation.Message, error) {
	t.join()
	if len(t.all) > conversation.Most {
		return nil, bad(t.field, "%s has more than %d elements", t.field, conversation.Most)
	}
	out, size := make([]conversation.Message, len(t.all)), 0
	for i := range t.all {
		x := &t.all[i]
		for k := range x.of {
			x.calls[k].Function.Name = named(x.of[k], x.calls[k].Function.Name)
		}
		if len(x.calls) > 0 {
			x.ToolCalls, _ = conversation.Marshal(x.calls) // of strings
		}
		if err := x.Check(x.at, true); err != nil {
			return nil, err
		}
		if size += x.Size(); size > most {
			return nil, tooLarge(t.field, "the conversation", size, most)
		}
		out[i], *x = x.Message, turn{}
	}
	return out, nil
}

// sentCall returns a call in a message that is sent. Without arguments it has an empty object.
func sentCall(id, name string, arguments json.RawMessage) conversation.ToolCall {
	if !asks(arguments) {
		arguments = json.RawMessage("{}")
	}
	return conversation.ToolCall{ID: id, Type: "function", Function: conversation.FunctionCall{Name: name, Arguments: string(arguments)}}
}

package bodies

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/services/public/conversation"
)

// item is one entry of the input of the Responses API.
type item struct {
	kind, id, role, callID, name, namespace, arguments, input string
	content, summary, output                                  []respondPart
}

// itemTypes are those whose fields are read one by one.
var itemTypes = []string{"", "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning",
	"item_reference"}

// readInput reads a text, or the items of a conversation.
func readInput(c *call, name string, s *source) error {
	switch s.kind() {
	case "a string":
		text, err := readLong(name, s)
		c.turns.add(name, conversation.Message{Role: "user", Content: text})
		return err
	case "an array":
	default:
		return bad(name, "%s is %s: want a string or an array of items", name, s.show())
	}
	return s.array(name, maxNested+1, func(i int) error {
		at := element(name, i)
		if s.kind() != "an object" {
			return bad(at, "%s is %s: want an object", at, s.show())
		}
		var it item
		var ignored []string
		tell := s.limits.Ignored
		s.limits.Ignored = func(name string) { ignored = append(ignored, name) }
		raw, err := s.taking(s.limits.Text, func() error { return it.read(at, s) })
		s.limits.Ignored = tell
		switch {
		case s.err != nil && s.peek() == 0: // outcome says why
			return err
		case err != nil && it.kind == "":
			var o struct{ Type string }
			if _ = json.Unmarshal(raw, &o); slices.Contains(itemTypes, o.Type) {
				return err
			}
			it.kind = o.Type
		case err != nil && slices.Contains(itemTypes, it.kind):
			return err
		}
		for _, name := range ignored {
			if slices.Contains(itemTypes, it.kind) { // others are ignored as a whole
				s.limits.ignore(name)
			}
		}
		return c.item(at, &it, raw)
	})
}

// read reads an item to its end, also if one of its fields is wrong.
func (it *item) read(at string, s *source) error {
	parts := func(to *[]respondPart, path string) func(string) error {
		return func(full string) (err error) {
			*to, err = readParts(full, path, s)
			return err
		}
	}
	depth := len(s.open)
	err := s.fields(at, "input[]", readers{"type": s.textAt(&it.kind), "id": s.textAt(&it.id),
		"role": s.textAt(&it.role), "content": parts(&it.content, "input[].content"), "summary": parts(&it.summary, "input[].summary"),
		"call_id": s.textAt(&it.callID), "name": s.textAt(&it.name), "namespace": s.textAt(&it.namespace),
		"arguments": s.longAt(&it.arguments), "input": s.longAt(&it.input), "output": parts(&it.output, "input[].output"),
		"status": nil, "phase": nil})
	for err != nil && len(s.open) > depth && s.peek() != 0 {
		s.token()
	}
	return err
}

// answers returns the turn that the calls and texts of one answer share.
func (c *call) answers(at string) *turn {
	if last := c.turns.last(); last == nil || last.Role != "assistant" {
		c.turns.add(at, conversation.Message{Role: "assistant"})
	}
	c.turns.thought = append(c.turns.thought, c.offer.thought...)
	c.offer.thought = nil
	return c.turns.last()
}

// item adds an item to the conversation.
func (c *call) item(at string, it *item, raw []byte) error {
	switch it.kind {
	case "message", "":
		said, err := textsOf(at+".content", it.content, nil)
		if err != nil {
			return err
		}
		return c.says(at, it.role, said)
	case "function_call", "custom_tool_call":
		arguments := json.RawMessage(it.arguments)
		if it.kind == "custom_tool_call" {
			arguments = conversation.CustomArguments(it.input)
		}
		t := c.answers(at)
		t.calls, t.of = append(t.calls, sentCall(it.callID, it.name, arguments)), append(t.of, it.namespace)
	case "function_call_output", "custom_tool_call_output": // see instead
		result, _ := textsOf(at+".output", it.output, func(p respondPart) string {
			c.limits.ignore("input[].output[]." + p.kind)
			return instead(p.kind, p.filename)
		})
		c.turns.add(at, conversation.Message{Role: "tool", Content: result, ToolCallID: it.callID})
	case "reasoning":
		all := it.summary
		if len(it.content) > 0 {
			all = it.content
		}
		for _, p := range all {
			c.offer.thought = append(c.offer.thought, p.text)
		}
	case "item_reference":
		if !strings.HasPrefix(it.id, "rs_") { // else a thought, without which the answer stays the same
			return unsupported(at+".type", "%s is a reference, and this server keeps no items: send the item itself", at)
		}
		c.limits.ignore("input[].type=" + it.kind)
	default: // what the provider's own tools have done: calls are the assistant's, what comes back from the client is the user's
		c.limits.ignore("input[].type=" + it.kind)
		holds := heldIn(raw)
		switch {
		case strings.HasSuffix(it.kind, "_output"), strings.HasSuffix(it.kind, "_response"):
			return c.says(at, "user", instead(it.kind, holds))
		case holds != "":
			return c.says(at, "assistant", instead(it.kind, holds))
		}
	}
	return nil
}

// says adds a message. What stands for the system at the beginning is one message; later, the user says it.
func (c *call) says(at, role, said string) error {
	switch role {
	case "assistant":
		c.answers(at)
		c.turns.say("\n", said)
	case "system", "developer":
		switch last := c.turns.last(); {
		case last == nil:
			c.turns.add(at, conversation.Message{Role: "system", Content: said})
		case last.Role == "system" && len(c.turns.all) == 1 || last.Role == "user":
			c.turns.say("\n\n", said)
		default:
			c.turns.add(at, conversation.Message{Role: "user", Content: said})
		}
	case "user":
		c.turns.add(at, conversation.Message{Role: "user", Content: said})
	default:
		return bad(at+".role", "%s.role is %.50q: want \"user\", \"assistant\", \"system\" or \"developer\"", at, role)
	}
	return nil
}

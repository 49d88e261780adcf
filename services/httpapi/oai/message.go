package oai

import (
	"encoding/json"
	"slices"
	"strings"
)

// Message is one turn of a conversation.
type Message struct {
	Role    string // "system", "user", "assistant" or "tool"
	Content string

	Name       string
	Reasoning  string
	ToolCallID string
	ToolCalls  json.RawMessage // a JSON array, empty for none
}

const (
	maxMessages = 16 << 10
	maxParts    = 1024 // of one message
)

var roles = []string{"system", "developer", "user", "assistant", "tool"}

func readMessages(c *Call, name string, raw json.RawMessage) (err error) {
	c.Messages, err = messages(name, raw)
	return err
}

func messages(name string, raw json.RawMessage) ([]Message, error) {
	var out []Message
	err := array(name, raw, maxMessages, func(i int, raw json.RawMessage) error {
		m, err := readMessage(element(name, i), raw)
		out = append(out, m)
		return err
	})
	if err == nil && len(out) == 0 {
		return nil, bad(name, "%s is empty: want at least one message", name)
	}
	return out, err
}

func readMessage(name string, raw json.RawMessage) (m Message, err error) {
	content := false
	err = object(name, raw, func(field string, raw json.RawMessage) error {
		full := join(name, field)
		if isNull(raw) {
			return nil
		}
		switch field {
		case "role":
			return readText(full, raw, &m.Role)
		case "content":
			content = true
			return readContent(full, raw, &m.Content)
		case "name":
			return readText(full, raw, &m.Name)
		case "reasoning_content":
			return readText(full, raw, &m.Reasoning)
		case "tool_call_id":
			return readText(full, raw, &m.ToolCallID)
		case "tool_calls":
			if kindOf(raw) != "an array" {
				return bad(full, "%s is %s: want an array", full, show(raw))
			}
			if compact(raw) != "[]" {
				m.ToolCalls = slices.Clone(raw)
			}
			return nil
		case "annotations": // client libraries send an answer back as it came
			return empty(nil, full, raw)
		}
		return unsupported(full, "unknown field %.100q: tandem does not support it", full)
	})
	switch {
	case err != nil:
	case m.Role == "":
		err = bad(join(name, "role"), "%s.role is missing: want %s", name, list(roles))
	case !slices.Contains(roles, m.Role):
		err = bad(join(name, "role"), "%s.role is %.50q: want %s", name, m.Role, list(roles))
	case len(m.ToolCalls) > 0 && m.Role != "assistant":
		err = bad(join(name, "tool_calls"), "%s.tool_calls: only the assistant calls tools, the role is %s", name, m.Role)
	case !content && len(m.ToolCalls) == 0:
		err = bad(join(name, "content"), "%s.content is missing: want text", name)
	case m.Role == "developer":
		m.Role = "system" // the newer name of the same, which few templates know
	}
	return m, err
}

// readContent reads a text or an array of parts, which are joined.
func readContent(name string, raw json.RawMessage, to *string) error {
	if kindOf(raw) == "a string" {
		return readText(name, raw, to)
	}
	if kindOf(raw) != "an array" {
		return bad(name, "%s is %s: want a string or an array of text parts", name, show(raw))
	}
	var b strings.Builder
	err := array(name, raw, maxParts, func(i int, raw json.RawMessage) error {
		return readPart(element(name, i), raw, &b)
	})
	*to = b.String()
	return err
}

func readPart(name string, raw json.RawMessage, to *strings.Builder) error {
	kind, text, other := "", "", ""
	there := false
	err := object(name, raw, func(field string, raw json.RawMessage) error {
		switch field {
		case "type":
			return readText(join(name, field), raw, &kind)
		case "text":
			there = true
			return readText(join(name, field), raw, &text)
		}
		other = field
		return nil
	})
	switch {
	case err != nil:
		return err
	case kind != "text" && kind != "":
		return unsupported(join(name, "type"), "%s.type is %.50q: only text is supported", name, kind)
	case other != "":
		return unsupported(join(name, other), "unknown field %.100q: tandem does not support it", join(name, other))
	case kind == "" || !there:
		return bad(name, "%s is %s: want {\"type\": \"text\", \"text\": …}", name, show(raw))
	}
	to.WriteString(text)
	return nil
}

package oai

import (
	"bytes"
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

func readMessages(c *Call, name string, s *source) (err error) {
	c.Messages, err = messages(name, s)
	return err
}

// messages reads a conversation; all its texts together are bounded by the limit of a text.
func messages(name string, s *source) ([]Message, error) {
	var out []Message
	left := s.limits.Text
	err := s.array(name, maxMessages, func(i int) error {
		m, err := readMessage(element(name, i), s, left)
		if left -= m.size(); left < 0 && err == nil {
			err = tooLarge(name, "the conversation", s.limits.Text-left, s.limits.Text)
		}
		out = append(out, m)
		return err
	})
	if err == nil && len(out) == 0 {
		return nil, bad(name, "%s is empty: want at least one message", name)
	}
	return out, err
}

// size returns the bytes of all texts.
func (m *Message) size() int {
	return len(m.Role) + len(m.Content) + len(m.Name) + len(m.Reasoning) + len(m.ToolCallID) + len(m.ToolCalls)
}

// Size returns the bytes of all texts of a conversation.
func Size(messages []Message) (n int) {
	for i := range messages {
		n += messages[i].size()
	}
	return n
}

// readMessage reads one message with texts of at most left bytes each.
func readMessage(name string, s *source, left int) (m Message, err error) {
	content := false
	err = s.object(name, func(field string) error {
		full := join(name, field)
		if s.isNull() {
			s.skip()
			return nil
		}
		switch field {
		case "role":
			return readText(full, s, &m.Role)
		case "content":
			content = true
			return readContent(full, s, &m.Content, left)
		case "name":
			return readText(full, s, &m.Name)
		case "reasoning_content":
			return readContent(full, s, &m.Reasoning, left)
		case "tool_call_id":
			return readText(full, s, &m.ToolCallID)
		case "tool_calls":
			return readToolCalls(full, s, &m.ToolCalls, left)
		case "annotations": // client libraries send an answer back unchanged
			return empty(nil, full, s)
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

// readToolCalls reads an array as it is written; nil for an empty one.
func readToolCalls(name string, s *source, to *json.RawMessage, left int) error {
	if s.kind() != "an array" {
		return bad(name, "%s is %s: want an array", name, s.show())
	}
	raw := s.raw(left)
	if !bytes.HasSuffix(raw, []byte("]")) { // it was cut
		return tooLarge("messages", name, len(raw), left)
	}
	if compact(raw) != "[]" {
		*to = slices.Clone(raw)
	}
	return nil
}

// readContent reads a text or an array of parts, which are joined; at most left bytes.
func readContent(name string, s *source, to *string, left int) error {
	var b strings.Builder
	n := 0
	switch s.kind() {
	case "a string":
		n = s.textTo(&b, left)
	case "an array":
		err := s.array(name, maxParts, func(i int) error {
			part, err := readPart(element(name, i), s, left-n)
			n += len(part)
			b.WriteString(part)
			return err
		})
		if err != nil {
			return err
		}
	default:
		return bad(name, "%s is %s: want a string or an array of text parts", name, s.show())
	}
	if n > left {
		return tooLarge("messages", name, n, left)
	}
	*to = b.String()
	return nil
}

// readPart reads one part of a content, of at most left bytes.
func readPart(name string, s *source, left int) (text string, err error) {
	kind, other := "", ""
	there := false
	err = s.object(name, func(field string) error {
		switch field {
		case "type":
			return readText(join(name, field), s, &kind)
		case "text":
			there = true
			if s.kind() != "a string" {
				return bad(join(name, field), "%s is %s: want a string", join(name, field), s.show())
			}
			n := 0
			if text, n = s.text(left); n > left {
				return tooLarge("messages", join(name, field), n, left)
			}
			return nil
		}
		other = field
		s.skip()
		return nil
	})
	switch {
	case err != nil:
	case kind != "text" && kind != "":
		err = unsupported(join(name, "type"), "%s.type is %.50q: only text is supported", name, kind)
	case other != "":
		err = unsupported(join(name, other), "unknown field %.100q: tandem does not support it", join(name, other))
	case kind == "" || !there:
		err = bad(name, "%s lacks type or text: want {\"type\": \"text\", \"text\": …}", name)
	}
	return text, err
}

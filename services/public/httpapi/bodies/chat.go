package bodies

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/services/public/conversation"
)

const maxParts = 1024 // of one message

// readMessages reads the conversation of OpenAI's chats.
func readMessages(c *call, name string, s *source) (err error) {
	c.Messages, err = conversationIn(name, s)
	return err
}

// conversationIn reads a conversation; all its texts together are bounded by the limit of a text.
func conversationIn(name string, s *source) ([]conversation.Message, error) {
	var out []conversation.Message
	left := s.limits.Text
	err := s.array(name, conversation.Most, func(i int) error {
		m, err := readMessage(element(name, i), s, left)
		if left -= m.Size(); left < 0 && err == nil {
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

// readMessage reads one message with texts of at most left bytes each.
func readMessage(name string, s *source, left int) (m conversation.Message, err error) {
	content, refusal := false, ""
	s.unseen = unseen{}
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
		}
		return readSentBack(&m, &refusal, name, field, s, left)
	})
	content = content || m.Role != "" && m.Role != "user" && !s.limits.Strict // an assistant has said nothing, a tool has no result
	if m.Content == "" && refusal != "" {
		m.Content, content = refusal, true
	}
	if err == nil {
		err = m.Check(name, content || m.Reasoning != "" && !s.limits.Strict)
	}
	if err == nil {
		err = s.unseen.take(&m, s.limits)
	}
	return m, err
}

const maxUnseen = 64 // kinds of one message

// unseen are what of a message is no text.
type unseen struct {
	first  error    // the first that refuses it
	names  []string // names of fields that are ignored
	fields []string // beside the content
}

// add notes one, that err refuses under a name.
func (u *unseen) add(err error, name string) {
	if u.first == nil {
		u.first = err
	}
	if len(u.names) < maxUnseen && !slices.Contains(u.names, name) {
		u.names = append(u.names, name)
	}
}

// take refuses a message that the client can send without it; for others see Instead.
func (u *unseen) take(m *conversation.Message, l Limits) error {
	if u.first != nil && (l.Strict || m.Role != "tool" && m.Role != "assistant") {
		return u.first
	}
	for _, name := range u.names {
		l.ignore("messages[]." + name)
	}
	for _, field := range u.fields {
		m.Content = strings.TrimPrefix(m.Content+"\n"+instead(field), "\n")
	}
	return nil
}

// readSentBack reads a field of a message that clients send back as they got it, or add for other servers.
func readSentBack(m *conversation.Message, refusal *string, name, field string, s *source, left int) error {
	full, isText := join(name, field), s.kind() == "a string"
	switch {
	case field == "annotations" && s.limits.Strict:
		return none("[]")(nil, full, s)
	case s.limits.Strict:
	case field == "refusal" && isText:
		return readContent(full, s, refusal, left)
	case (field == "reasoning" || field == "thinking") && isText && m.Reasoning == "": // OpenRouter's and Ollama's reasoning_content
		return readContent(full, s, &m.Reasoning, left)
	case slices.Contains(unheard, field):
		err := nothing(nil, full, s)
		if err != nil && slices.Contains(media, field) {
			s.unseen.add(err, field)
			s.unseen.fields, err = append(s.unseen.fields, field), nil
		}
		return err
	}
	return s.unknown(full, "messages[]."+field)
}

// unheard are fields of messages that say more than their text.
var unheard = []string{"function_call", "audio", "images", "image_url", "videos", "documents", "files"}

// media are those of them that are no text.
var media = []string{"audio", "images", "image_url", "videos"}

// readToolCalls reads an array as it is written; nil for an empty one.
func readToolCalls(name string, s *source, to *json.RawMessage, left int) error {
	if s.kind() != "an array" {
		return bad(name, "%s is %s: want an array", name, s.show())
	}
	raw, err := s.json("messages", name, left)
	if err == nil && compact(raw) != "[]" {
		*to = asFunctions(raw)
	}
	return err
}

// asFunctions returns calls with those of tools that take a text as calls of functions.
func asFunctions(array json.RawMessage) json.RawMessage {
	var all []json.RawMessage
	if !bytes.Contains(array, []byte(`"custom"`)) || json.Unmarshal(array, &all) != nil {
		return array
	}
	for i, raw := range all {
		var c struct {
			ID, Type string
			Custom   struct{ Name, Input string }
		}
		if json.Unmarshal(raw, &c) == nil && c.Type == "custom" && c.Custom.Name != "" {
			all[i], _ = conversation.Marshal(sentCall(c.ID, c.Custom.Name, conversation.CustomArguments(c.Custom.Input)))
		}
	}
	array, _ = conversation.Marshal(all)
	return array
}

// readContent reads a text or an array of parts, which are joined by line breaks; at most left bytes.
func readContent(name string, s *source, to *string, left int) error {
	var b strings.Builder
	n := 0
	switch s.kind() {
	case "a string":
		n = s.textTo(&b, left)
	case "an array":
		parts := 0
		err := s.array(name, maxParts, func(i int) error {
			part, silent, err := readPart(element(name, i), s, left-n)
			if err != nil || silent {
				return err
			}
			if parts++; parts > 1 {
				n++
				b.WriteByte('\n')
			}
			n += len(part)
			b.WriteString(part)
			return nil
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

// part is one part of a content while it is read.
type part struct {
	kind, text string
	there      bool     // it has a text
	others     []string // names of its other fields
}

// textTypes are the types of parts that are text: of chats, of OpenAI's Responses, and what a model said instead of an answer.
var textTypes = []string{"text", "input_text", "output_text", "refusal"}

// silentTypes are the types of parts that hold what a model thought, in histories of other servers.
var silentTypes = []string{"thinking", "redacted_thinking", "reasoning"}

// readPart reads one part of a content, of at most left bytes; silent says that it is not part of the text.
func readPart(name string, s *source, left int) (text string, silent bool, err error) {
	var p part
	if s.kind() == "a string" && !s.limits.Strict {
		err = p.read(name, s, left)
		return p.text, false, err
	}
	err = s.object(name, func(field string) error {
		full := join(name, field)
		switch {
		case field == "type":
			return readText(full, s, &p.kind)
		case field == "text" || field == "refusal" && !s.limits.Strict:
			return p.read(full, s, left)
		case !s.isNull() || s.limits.Strict:
			p.others = append(p.others, field)
		}
		s.skip()
		return nil
	})
	if err != nil {
		return "", false, err
	}
	text, silent, err = p.check(name, s.limits)
	if kind := p.kind; err != nil && kind != "" && !s.limits.Strict && !slices.Contains(textTypes, kind) {
		s.unseen.add(err, "content[]."+kind)
		return instead(kind, p.text), false, nil
	}
	return text, silent, err
}

// read reads the text.
func (p *part) read(name string, s *source, left int) error {
	p.there = true
	switch {
	case s.isNull() && !s.limits.Strict:
		s.skip()
		return nil
	case s.kind() != "a string":
		return bad(name, "%s is %s: want a string", name, s.show())
	}
	text, n := s.text(left)
	if n > left {
		return tooLarge("messages", name, n, left)
	}
	if text != "" {
		p.text = text
	}
	return nil
}

// check returns the text of a part that was read; silent says that it is not part of the content.
func (p *part) check(name string, l Limits) (text string, silent bool, err error) {
	types, implied := textTypes, "text"
	if l.Strict {
		types, implied = textTypes[:1], ""
	}
	kind := or(p.kind, implied)
	switch {
	case !l.Strict && slices.Contains(silentTypes, kind):
		l.ignore("messages[].content[]." + kind)
		return "", true, nil
	case kind != "" && !slices.Contains(types, kind):
		return "", false, unsupported(join(name, "type"), "%s.type is %.50q: only text is supported", name, kind)
	case l.Strict && len(p.others) > 0:
		other := join(name, p.others[0])
		return "", false, unsupported(other, "unknown field %.100q: tandem does not support it", other)
	case kind == "" || !p.there:
		return "", false, bad(name, "%s lacks type or text: want {\"type\": \"text\", \"text\": …}", name)
	}
	for _, other := range p.others {
		l.ignore("messages[].content[]." + other)
	}
	return p.text, false, nil
}

package chats

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/services/public/conversation"
)

// inWords returns a conversation for a template that shows no calls: they and their results are texts, in the form that most models have
// seen in training (Hermes 2 Pro's). The results of one turn are one message.
func inWords(of conversation.Conversation) conversation.Conversation {
	all := slices.Clone(of.Messages)
	for i := range all {
		switch m := &all[i]; {
		case m.Role == "tool":
			*m = conversation.Message{Role: "tool", Content: "<tool_response>\n" + m.Content + "\n</tool_response>"}
		case len(m.ToolCalls) > 0:
			m.Content, m.ToolCalls = strings.TrimSpace(m.Content+"\n"+written(m.ToolCalls)), nil
		}
	}
	of.Messages = joined(all, "\n", func(i int, role string) bool { return role == "tool" && all[i].Role == role })
	for i := range of.Messages {
		if m := &of.Messages[i]; m.Role == "tool" {
			m.Role = "user"
		}
	}
	return of
}

// shortIDs returns a conversation in which ids of calls are nine letters and digits, as Mistral's templates want them. Clients send back
// ids that other models or APIs have given. Equal ids stay equal.
func shortIDs(messages []conversation.Message) []conversation.Message {
	messages = slices.Clone(messages)
	for i := range messages {
		m := &messages[i]
		if m.ToolCallID != "" {
			m.ToolCallID = shortID(m.ToolCallID)
		}
		var all []map[string]json.RawMessage
		if len(m.ToolCalls) == 0 || json.Unmarshal(m.ToolCalls, &all) != nil {
			continue
		}
		for _, c := range all {
			var id string
			if json.Unmarshal(c["id"], &id) == nil {
				c["id"], _ = json.Marshal(shortID(id))
			}
		}
		m.ToolCalls, _ = json.Marshal(all)
	}
	return messages
}

// shortID returns an id of nine letters and digits, which is id if that is one.
func shortID(id string) string {
	const letters, length = "0123456789abcdefghijklmnopqrstuvwxyz", 9
	if len(id) == length && strings.Trim(strings.ToLower(id), letters) == "" {
		return id
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	n, out := h.Sum64(), make([]byte, length)
	for i := range out {
		out[i] = letters[n%uint64(len(letters))]
		n /= uint64(len(letters))
	}
	return string(out)
}

// describe tells the model which tools there are and how it calls one.
func describe(tools json.RawMessage) string {
	var b strings.Builder
	b.WriteString("You may call these functions, whose signatures are given as JSON:\n<tools>\n")
	var each []json.RawMessage
	_ = json.Unmarshal(tools, &each)
	for _, t := range each {
		b.Write(t)
		b.WriteByte('\n')
	}
	b.WriteString("</tools>\nFor each call, write a JSON object with the function's name and its arguments within " +
		"<tool_call></tool_call>:\n<tool_call>\n{\"name\": NAME, \"arguments\": OBJECT}\n</tool_call>\n" +
		"The results come back within <tool_response></tool_response>.")
	return b.String()
}

// written returns calls as the model would have written them.
func written(array json.RawMessage) string {
	var all []struct {
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
	}
	if json.Unmarshal(array, &all) != nil {
		return string(array)
	}
	var out []string
	for _, c := range all {
		arguments := string(c.Function.Arguments)
		var text string
		if json.Unmarshal(c.Function.Arguments, &text) == nil && json.Valid([]byte(text)) {
			arguments = text
		}
		if arguments == "" {
			arguments = "{}"
		}
		name, _ := json.Marshal(c.Function.Name)
		out = append(out, fmt.Sprintf("<tool_call>\n{\"name\": %s, \"arguments\": %s}\n</tool_call>", name, arguments))
	}
	return strings.Join(out, "\n")
}

// mustCall asks for a call. One is forced as well, but a model that knows of it writes better arguments.
func mustCall(of conversation.Conversation) string {
	var all []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if _ = json.Unmarshal(of.Tools, &all); len(all) == 1 {
		return fmt.Sprintf("Answer with a call of the function %s, and with nothing else.", all[0].Function.Name)
	}
	return "Answer with a call of one of the functions, and with nothing else."
}

package chats

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/chat"
)

// turns says which conversations a template refuses, or shows without one of their texts, and so in which form it gets them. All false: the
// template is given every conversation as it is.
type turns struct {
	noSystem   bool // the system's messages are the beginning of the user's first
	oneSystem  bool // those at the beginning are one
	front      bool // those behind the beginning are the user's
	userFirst  bool // an assistant's greeting has an empty turn of the user before it
	users      bool // consecutive messages of the user are one
	assistants bool // consecutive messages of the assistant are one
	results    bool // a user's message behind a result of a tool is the result's end
	oneCall    bool // each call of several is a message of its own, with its result behind it
	answered   bool // a call has a result before the user goes on
	inWords    bool // calls and results are texts
}

// tried returns what a template needs, by conversations that it is asked to show.
func tried(ctx context.Context, t *chat.Template) (n turns) {
	const system, user, assistant = "system", "user", "assistant"
	words := [...]string{"tandem-alder", "tandem-birch", "tandem-cedar", "tandem-elder", "tandem-maple"}
	say := func(roles ...string) (out []chat.Message) {
		for i, role := range roles {
			out = append(out, chat.Message{Role: role, Content: words[i]})
		}
		return out
	}
	shows := func(turns []chat.Message, tools json.RawMessage, texts ...string) bool {
		for _, m := range turns {
			texts = append(texts, m.Content)
		}
		out, err := t.Try(ctx, turns, chat.Options{AddGenerationPrompt: true, Tools: tools})
		return err == nil && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(out.Text, text) })
	}
	n.inWords = !t.Reads("tools")
	if !shows(say(user, assistant, user), nil) {
		return n // no conversation tells anything
	}
	cannot := func(roles ...string) bool { return !shows(say(roles...), nil) }
	n.noSystem = cannot(system, user)
	n.oneSystem = cannot(system, system, user)
	n.front = n.noSystem || cannot(system, user, assistant, system, user)
	n.userFirst = cannot(assistant, user)
	n.users = cannot(user, user, assistant, user)
	n.assistants = cannot(user, assistant, assistant, user)
	if !n.inWords {
		n.calls(say, shows)
	}
	return n
}

// calls adds what a template needs that is told of tools.
func (n *turns) calls(say func(roles ...string) []chat.Message, shows func([]chat.Message, json.RawMessage, ...string) bool) {
	const user, assistant, tool = "user", "assistant", "tool"
	tools := json.RawMessage(`[{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object", ` +
		`"properties": {}}}}]`)
	ids, arguments := [...]string{"call00001", "call00002"}, [...]string{"tandem-hazel", "tandem-larch"}
	called := func(count int, roles ...string) bool {
		all := say(roles...)
		for i := range all {
			switch {
			case all[i].Role == tool:
				all[i].Name, all[i].ToolCallID = "f", ids[i-2]
			case i == 1:
				var calls []string
				for k := range count {
					calls = append(calls, fmt.Sprintf(`{"id": %q, "type": "function", "function": {"name": "f", "arguments": {"a": %q}}}`,
						ids[k], arguments[k]))
				}
				all[i].Content, all[i].ToolCalls = "", json.RawMessage("["+strings.Join(calls, ",")+"]")
			}
		}
		return shows(all, tools, arguments[:count:count]...)
	}
	if n.inWords = !called(1, user, assistant, tool) && !called(1, user, assistant, tool, assistant); n.inWords {
		return
	}
	n.results = !called(1, user, assistant, tool, user)
	n.oneCall = !called(2, user, assistant, tool, tool) && !called(2, user, assistant, tool, tool, assistant)
	n.answered = !called(1, user, assistant, user)
}

// between stands between messages that become one.
const between = "\n\n"

// of returns a conversation in the form that the template shows.
func (n turns) of(messages []conversation.Message) []conversation.Message {
	if n == (turns{inWords: n.inWords}) || len(messages) == 0 {
		return messages
	}
	messages = slices.Clone(messages)
	lead := 0 // messages of the system at the beginning
	for lead < len(messages) && messages[lead].Role == "system" {
		lead++
	}
	for i := range messages {
		if messages[i].Role == "system" && (n.noSystem || n.front && i >= lead) {
			messages[i].Role = "user"
		}
	}
	if first := min(lead, len(messages)-1); n.userFirst && messages[first].Role == "assistant" && (!n.noSystem || lead == 0) {
		messages = slices.Insert(messages, first, conversation.Message{Role: "user"})
	}
	if n.noSystem && lead > 0 && lead < len(messages) && messages[lead].Role == "user" {
		lead++ // the system's text is the beginning of what the user says first
	}
	all := joined(messages, between, func(i int, role string) bool {
		return i < lead && (n.oneSystem || n.noSystem) ||
			role == messages[i].Role && (role == "user" && n.users || role == "assistant" && n.assistants)
	})
	if n.oneCall || n.answered {
		all = n.paired(all)
	}
	return joined(all, between, func(i int, role string) bool { return n.results && role == "tool" && all[i].Role == "user" })
}

// joined returns messages of which those are one for which with is true: of the next message, and the role of what came before. separator
// stands between their texts.
func joined(messages []conversation.Message, separator string, with func(i int, role string) bool) []conversation.Message {
	out := make([]conversation.Message, 0, len(messages))
	for i := 0; i < len(messages); {
		m, from := messages[i], i
		for i++; i < len(messages) && with(i, m.Role); i++ {
		}
		if all := messages[from:i]; len(all) > 1 {
			var texts, thoughts []string
			var calls []json.RawMessage
			for _, one := range all {
				texts, thoughts = append(texts, one.Content), append(thoughts, one.Reasoning)
				calls = append(calls, elements(one.ToolCalls)...)
			}
			empty := func(s string) bool { return s == "" }
			m.Content = strings.Join(slices.DeleteFunc(texts, empty), separator)
			m.Reasoning = strings.Join(slices.DeleteFunc(thoughts, empty), separator)
			if len(calls) > 0 {
				m.ToolCalls, _ = conversation.Marshal(calls)
			}
		}
		out = append(out, m)
	}
	return out
}

// elements returns those of a JSON array.
func elements(array json.RawMessage) (all []json.RawMessage) {
	if len(array) > 0 {
		_ = json.Unmarshal(array, &all)
	}
	return all
}

// paired returns messages in which each call has a result and, if the template shows no more in one turn, a turn of its own before it.
func (n turns) paired(messages []conversation.Message) []conversation.Message {
	out := make([]conversation.Message, 0, len(messages))
	for i := 0; i < len(messages); {
		turn, calls := messages[i], elements(messages[i].ToolCalls)
		results := messages[i+1:]
		if end := slices.IndexFunc(results, func(m conversation.Message) bool { return m.Role != "tool" }); end >= 0 {
			results = results[:end]
		}
		if len(calls) == 0 {
			results = nil
		}
		i += 1 + len(results)
		out = append(out, turn)
		byID := map[string][]conversation.Message{}
		for _, r := range results {
			byID[r.ToolCallID] = append(byID[r.ToolCallID], r)
		}
		for k, raw := range calls {
			var c struct {
				ID       string
				Function struct{ Name string }
			}
			_ = json.Unmarshal(raw, &c)
			if n.oneCall && len(calls) > 1 {
				if k > 0 {
					turn.Content, turn.Reasoning = "", ""
					out = append(out, turn)
				}
				out[len(out)-1].ToolCalls, _ = conversation.Marshal([]json.RawMessage{raw})
			}
			if all := byID[c.ID]; len(all) > 0 {
				out, byID[c.ID] = append(out, all[0]), all[1:]
			} else if n.answered && i < len(messages) { // at the end, its result is still to come
				out = append(out, conversation.Message{Role: "tool", Content: "no result", ToolCallID: c.ID, Name: c.Function.Name})
			}
		}
		for _, r := range results { // of no call
			if all := byID[r.ToolCallID]; len(all) > 0 {
				out, byID[r.ToolCallID] = append(out, all[0]), all[1:]
			}
		}
	}
	return out
}

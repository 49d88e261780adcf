package chat

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// OpenAI's API has the arguments of a tool call as a string of JSON. Most templates write arguments|tojson, and want an object; some
// join the string to others.

// needle is the name of an argument in the conversations that wantsString renders.
const needle = "tandem_argument"

// wantsString reports whether the template wants arguments as a string: it does not write an object as JSON, and it does write the string.
// It is found once for all requests, so no request's end decides it.
func (t *Template) wantsString() bool {
	t.arguments.Do(func() {
		const object = `{"` + needle + `": "x"}`
		good := func(out string) bool { return strings.Contains(out, needle) && !strings.Contains(out, "'"+needle+"'") }
		if t.trial(object, false, good) {
			return
		}
		quoted, _ := json.Marshal(object)
		t.asString = t.trial(string(quoted), true, func(out string) bool { return strings.Contains(out, object) })
	})
	return t.asString
}

// trial reports whether a rendering of a call with these arguments is good. Some templates want the tool's answer to follow.
func (t *Template) trial(arguments string, asString bool, good func(string) bool) bool {
	calls := fmt.Sprintf(`[{"id": "call00001", "type": "function", "function": {"name": "f", "arguments": %s}}]`, arguments)
	tools := json.RawMessage(`[{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object", ` +
		`"properties": {}}}}]`)
	turns := []Message{{Role: "user", Content: "x"}, {Role: "assistant", ToolCalls: json.RawMessage(calls)},
		{Role: "tool", Content: "x", Name: "f", ToolCallID: "call00001"}}
	for n := len(turns); n > 1; n-- {
		for _, tools := range []json.RawMessage{nil, tools} {
			out, err := t.render(context.Background(), turns[:n], Options{Tools: tools}, asString, trial)
			if err == nil && good(out.Text) {
				return true
			}
		}
	}
	return false
}

// callArguments gives the arguments of tool calls the form that the template wants. A string that is no JSON stays one.
func callArguments(m *meter, calls any, asString bool) {
	l, ok := calls.(*list)
	if !ok {
		return
	}
	for _, c := range l.items {
		of, _ := c.(*dict)
		if of == nil {
			continue
		}
		if f, ok := of.lookup(m, lit("function")); ok {
			of, _ = f.(*dict)
		}
		if of == nil {
			continue
		}
		v, ok := of.lookup(m, lit("arguments"))
		if !ok {
			continue
		}
		switch v := v.(type) {
		case text:
			if !asString {
				of.put(m, lit("arguments"), parsed(m, v))
			}
		case *dict, *list:
			if asString {
				of.put(m, lit("arguments"), toJSON(v, args{m: m, what: "tojson"}))
			}
		}
	}
}

// maxParsed bounds how deep arguments that are parsed are nested; deeper ones stay a string.
const maxParsed = 100

// parsed returns the value of t, which is JSON, and t itself if it is not. An empty one is an object without entries.
func parsed(m *meter, t text) any {
	m.spend(len(t.s))
	if strings.TrimSpace(t.s) == "" {
		return &dict{}
	}
	depth := 0
	for i := range len(t.s) {
		switch t.s[i] {
		case '{', '[':
			if depth++; depth > maxParsed {
				return t
			}
		case '}', ']':
			depth--
		}
	}
	if !json.Valid([]byte(t.s)) {
		return t
	}
	return decode(m, "the arguments of a tool call", json.RawMessage(t.s))
}

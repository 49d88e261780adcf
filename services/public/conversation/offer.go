package conversation

import (
	"bytes"
	"encoding/json"
)

// ToolChoice says which tools the model may call, and whether it has to.
type ToolChoice struct {
	Must bool     // it has to call one
	None bool     // it is to call none
	Only []string // the tools that it may call; nil: all
}

// Mode sets what a word asks for: "none", "auto", "required", or "any", which means the same. field is its place in the request.
func (t *ToolChoice) Mode(field, word string) error {
	switch word {
	case "none":
		t.None = true
	case "auto":
	case "required", "any":
		t.Must = true
	default:
		return wrong(field, "%s is %.50q: want \"none\", \"auto\", \"required\" or an object that names a tool", field, word)
	}
	return nil
}

// Offer leaves those of tools, in the form of Conversation.Tools, that the model is told of: each at most as often as it is there, however
// often the choice names it. Errors: Invalid, of the field tool_choice.
func (t ToolChoice) Offer(tools json.RawMessage) (json.RawMessage, error) {
	if t.None || len(tools) == 0 && !t.Must && len(t.Only) == 0 {
		return nil, nil
	}
	if len(t.Only) == 0 && !t.Must {
		return tools, nil
	}
	each, first := split(tools)
	if len(each) == 0 {
		return nil, wrong("tool_choice", "tool_choice asks for a call and there are no functions in tools: want at least one")
	}
	if len(t.Only) == 0 {
		return tools, nil
	}
	var kept []json.RawMessage
	for _, name := range t.Only {
		at, there := first[name]
		if !there {
			return nil, wrong("tool_choice", "tool_choice names %.100q, which is not in tools: want one of %.500s", name,
				listed(each, first))
		}
		if each[at] != nil {
			kept, each[at] = append(kept, each[at]), nil
		}
	}
	return Marshal(kept)
}

// listed returns the names of tools in their order, and at most some hundred bytes of them.
func listed(each []json.RawMessage, first map[string]int) string {
	names := make([]string, len(each))
	for name, at := range first {
		names[at] = name
	}
	const most = 512
	out := ""
	for _, name := range names {
		switch {
		case name == "": // a second tool of a name
		case len(out) > most:
			return out
		case out != "":
			out += ", " + name
		default:
			out = name
		}
	}
	return out
}

// Tool is a function as Conversation.Tools has it.
type Tool struct {
	Type     string   `json:"type"` // "function"
	Function Function `json:"function"`
}

// Function is what a model is told of a function.
type Function struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"` // JSON Schema
}

// ToolCall is a call of a tool as Message.ToolCalls has it, or a piece of one in an answer.
type ToolCall struct {
	Index    *int         `json:"index,omitempty"` // of a piece
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"` // "function", or in an answer "custom"
	Function FunctionCall `json:"function,omitzero"`
	Custom   *CustomCall  `json:"custom,omitempty"` // in an answer, of a tool that takes a text
}

// CustomCall is what is called of a tool that takes a text.
type CustomCall struct {
	Name  string `json:"name,omitempty"`
	Input string `json:"input"`
}

// FunctionCall is what is called.
type FunctionCall struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// Marshal is json.Marshal without escapes for HTML.
func Marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

// split returns tools one by one, and at which place the first of each name is.
func split(tools json.RawMessage) (each []json.RawMessage, first map[string]int) {
	if json.Unmarshal(tools, &each) != nil {
		return nil, nil
	}
	first = make(map[string]int, len(each))
	for i, raw := range each {
		var t struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		}
		_ = json.Unmarshal(raw, &t)
		if _, there := first[t.Function.Name]; !there {
			first[t.Function.Name] = i
		}
	}
	return each, first
}

package oai

import (
	"encoding/json"
	"slices"
)

// ToolChoice says which tools the model may call, and whether it has to.
type ToolChoice struct {
	Must bool     // it has to call one
	None bool     // it is to call none
	Only []string // the tools that it may call; nil: all
}

// readToolChoice reads "none", "auto", "required", {"type": "function", "function": {"name": …}}, the same as the Responses API writes it,
// and OpenAI's allowed_tools. "any" and {"type": "tool", "name": …} are Anthropic's.
func readToolChoice(c *Call, name string, s *source) error {
	if s.kind() == "a string" {
		mode := ""
		if err := readText(name, s, &mode); err != nil {
			return err
		}
		return c.choice.mode(name, mode)
	}
	if s.kind() != "an object" {
		return bad(name, "%s is %s: want \"none\", \"auto\", \"required\" or an object that names a tool", name, s.show())
	}
	raw := s.raw(maxSmall)
	var o struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Mode     string `json:"mode"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
		Tools   []namedTool `json:"tools"`
		Allowed struct {
			Mode  string      `json:"mode"`
			Tools []namedTool `json:"tools"`
		} `json:"allowed_tools"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return bad(name, "%s is %s: want {\"type\": \"function\", \"function\": {\"name\": …}}", name, show(raw))
	}
	switch {
	case o.Type == "allowed_tools":
		for _, t := range slices.Concat(o.Tools, o.Allowed.Tools) {
			c.choice.Only = append(c.choice.Only, or(t.Function.Name, t.Name))
		}
		return c.choice.mode(name+".mode", or(or(o.Mode, o.Allowed.Mode), "auto"))
	case or(o.Function.Name, o.Name) != "":
		c.choice.Only, c.choice.Must = []string{or(o.Function.Name, o.Name)}, true
		return nil
	}
	return c.choice.mode(name+".type", o.Type)
}

// namedTool is a tool in a list of allowed ones.
type namedTool struct {
	Name     string `json:"name"`
	Function struct {
		Name string `json:"name"`
	} `json:"function"`
}

func (t *ToolChoice) mode(name, mode string) error {
	switch mode {
	case "none":
		t.None = true
	case "auto":
	case "required", "any":
		t.Must = true
	default:
		return bad(name, "%s is %.50q: want \"none\", \"auto\", \"required\" or an object that names a tool", name, mode)
	}
	return nil
}

// functions returns the tools that a model can be told of, in the form of chats, and the kinds of the others. A tool of another kind than a
// function, such as a search that the server is to carry out, is left out. Odd schemas are left as they are.
func functions(array json.RawMessage) (out json.RawMessage, others []string, err error) {
	var all []json.RawMessage
	if err := json.Unmarshal(array, &all); err != nil {
		return nil, nil, err
	}
	var kept []json.RawMessage
	for i, raw := range all {
		var t struct {
			Type     string          `json:"type"`
			Function json.RawMessage `json:"function"`
			Name     string          `json:"name"`
		}
		if json.Unmarshal(raw, &t) != nil {
			return nil, nil, bad(element("tools", i), "%s is %s: want an object", element("tools", i), show(raw))
		}
		var f struct {
			Name string `json:"name"`
		}
		switch {
		case t.Type != "" && t.Type != "function":
			others = append(others, t.Type)
			continue
		case len(t.Function) > 0:
			if json.Unmarshal(t.Function, &f) != nil || f.Name == "" {
				field := join(element("tools", i), "function.name")
				return nil, nil, bad(field, "%s is missing: want the tool's name", field)
			}
		case t.Name != "": // the form of the Responses API
			raw, err = wrapped(raw)
			if err != nil {
				return nil, nil, err
			}
		default:
			field := join(element("tools", i), "function")
			return nil, nil, bad(field, "%s is missing: want {\"type\": \"function\", \"function\": {\"name\": …}}", field)
		}
		kept = append(kept, raw)
	}
	if len(kept) == 0 {
		return nil, others, nil
	}
	out, err = Marshal(kept)
	return out, others, err
}

// wrapped puts a function that is written flat into the form of chats.
func wrapped(flat json.RawMessage) (json.RawMessage, error) {
	var f SentFunction
	if err := json.Unmarshal(flat, &f); err != nil {
		return nil, err
	}
	return Marshal(SentTool{"function", f})
}

// toolNames returns the names of tools in the form of chats.
func toolNames(array json.RawMessage) (names []string, each []json.RawMessage) {
	if json.Unmarshal(array, &each) != nil {
		return nil, nil
	}
	for _, raw := range each {
		var t namedTool
		_ = json.Unmarshal(raw, &t)
		names = append(names, t.Function.Name)
	}
	return names, each
}

// offer checks the tools and the choice among them, once the whole body is read, and leaves those that the model may call.
func (c *Call) offer(l Limits) error {
	if len(c.tools) > 0 {
		kept, others, err := functions(c.tools)
		if err != nil {
			return err
		}
		for _, kind := range others {
			if l.Strict {
				return unsupported("tools", "a tool is of type %.50q: only \"function\" is supported", kind)
			}
			l.ignore("tools[].type=" + kind)
		}
		c.tools = kept
	}
	if len(c.tools) == 0 && c.says {
		l.ignore("parallel_tool_calls")
	}
	names, each := toolNames(c.tools)
	t := c.choice
	switch {
	case t.None:
		c.tools, c.choice = nil, ToolChoice{None: true}
	case len(names) == 0 && (t.Must || len(t.Only) > 0):
		return bad("tool_choice", "tool_choice asks for a call and there are no functions in tools: want at least one")
	case len(t.Only) > 0:
		var kept []json.RawMessage
		for _, name := range t.Only {
			at := slices.Index(names, name)
			if at < 0 {
				return bad("tool_choice", "tool_choice names %.100q, which is not in tools: want one of %s", name, list(names))
			}
			kept = append(kept, each[at])
		}
		var err error
		c.tools, err = Marshal(kept)
		return err
	}
	return nil
}

// ToolCall is a call of a tool in an answer, or a piece of one.
type ToolCall struct {
	Index    *int         `json:"index,omitempty"` // of a piece
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function FunctionCall `json:"function"`
}

// FunctionCall is what is called.
type FunctionCall struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

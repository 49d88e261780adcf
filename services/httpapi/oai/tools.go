package oai

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"

	"github.com/tandem-llm/tandem/services/conversation"
)

// readToolChoice reads "none", "auto", "required", {"type": "function", "function": {"name": …}}, the same as the Responses API writes it,
// and OpenAI's allowed_tools. "any" and {"type": "tool", "name": …} are Anthropic's.
func readToolChoice(c *Call, name string, s *source) error {
	if s.kind() == "a string" {
		mode := ""
		if err := readText(name, s, &mode); err != nil {
			return err
		}
		return c.choice.Mode(name, mode)
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
	if !bytes.HasSuffix(raw, []byte("}")) {
		return bad(name, "%s has more than %d bytes: want fewer names of tools", name, maxSmall)
	}
	if err := UnmarshalPart(name, raw, &o, `{"type": "function", "function": {"name": …}}`); err != nil {
		return err
	}
	switch {
	case o.Type == "allowed_tools":
		for _, t := range slices.Concat(o.Tools, o.Allowed.Tools) {
			c.choice.Only = append(c.choice.Only, or(t.Function.Name, t.Name))
		}
		return c.choice.Mode(name+".mode", or(or(o.Mode, o.Allowed.Mode), "auto"))
	case or(o.Function.Name, o.Name) != "":
		c.choice.Only, c.choice.Must = []string{or(o.Function.Name, o.Name)}, true
		return nil
	}
	return c.choice.Mode(name+".type", o.Type)
}

// namedTool is a tool in a list of allowed ones.
type namedTool struct {
	Name     string `json:"name"`
	Function struct {
		Name string `json:"name"`
	} `json:"function"`
}

// sentTool is a tool as chats and the Responses API send it.
type sentTool struct {
	Type string
	conversation.Function
	Nested conversation.Function `json:"function"`
}

// functions returns the tools that a model can be told of, in the form of chats, and the kinds of the others. A tool of another kind than a
// function, such as a search that the server is to carry out, is left out. Odd schemas are left as they are.
func functions(array json.RawMessage) (out json.RawMessage, others []string, err error) {
	if err := check("tools", array, reflect.TypeFor[[]sentTool]()); err != nil {
		return nil, nil, err
	}
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
	out, err = conversation.Marshal(kept)
	return out, others, err
}

// wrapped puts a function that is written flat into the form of chats.
func wrapped(flat json.RawMessage) (json.RawMessage, error) {
	var f conversation.Function
	if err := json.Unmarshal(flat, &f); err != nil {
		return nil, err
	}
	return conversation.Marshal(conversation.Tool{Type: "function", Function: f})
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
	if len(c.tools) == 0 && c.says && !c.parallel {
		l.ignore("parallel_tool_calls")
	}
	var err error
	if c.tools, err = c.choice.Offer(c.tools); err == nil && c.choice.Must {
		l.ignore("tool_choice") // the prompt asks for a call; nothing forces one yet
	}
	return err
}

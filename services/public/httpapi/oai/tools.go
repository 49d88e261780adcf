package oai

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"

	"github.com/tandem-llm/tandem/services/public/conversation"
)

// readToolChoice reads "none", "auto", "required", {"type": "function", "function": {"name": …}}, likewise of "custom", the same as the
// Responses API writes it, and OpenAI's allowed_tools. "any" and {"type": "tool", "name": …} are Anthropic's.
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
		namedTool
		Type    string      `json:"type"`
		Mode    string      `json:"mode"`
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
			c.choice.Only = append(c.choice.Only, t.name())
		}
		return c.choice.Mode(name+".mode", or(or(o.Mode, o.Allowed.Mode), "auto"))
	case o.name() != "":
		c.choice.Only, c.choice.Must = []string{o.name()}, true
		return nil
	}
	return c.choice.Mode(name+".type", o.Type)
}

// named is a tool's name.
type named struct {
	Name string `json:"name"`
}

// namedTool is a tool in a choice, as chats and the Responses API name it.
type namedTool struct {
	named
	Function named `json:"function"`
	Custom   named `json:"custom"`
}

func (t *namedTool) name() string { return or(or(t.Function.Name, t.Custom.Name), t.Name) }

// customTool is a tool that takes a text.
type customTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Format      json.RawMessage `json:"format"`
}

// sentTool is a tool as chats and the Responses API send it.
type sentTool struct {
	Type string
	conversation.Function
	Nested conversation.Function `json:"function"`
	Custom customTool            `json:"custom"`
	Format json.RawMessage       `json:"format"`
}

// functions returns the tools that a model can be told of, in the form of chats, those of them that take a text, and the kinds of the
// others. A tool of another kind, such as a search that the server is to carry out, is left out. Odd schemas are left as they are.
func functions(array json.RawMessage) (out json.RawMessage, custom map[string]bool, others []string, err error) {
	if err := check("tools", array, reflect.TypeFor[[]sentTool]()); err != nil {
		return nil, nil, nil, err
	}
	var all []json.RawMessage
	if err := json.Unmarshal(array, &all); err != nil {
		return nil, nil, nil, err
	}
	var kept []json.RawMessage
	for i, raw := range all {
		var t struct {
			Type     string          `json:"type"`
			Function json.RawMessage `json:"function"`
			Name     string          `json:"name"`
		}
		if json.Unmarshal(raw, &t) != nil {
			return nil, nil, nil, bad(element("tools", i), "%s is %s: want an object", element("tools", i), show(raw))
		}
		var f named
		switch {
		case t.Type == "custom":
			if raw, f.Name, err = asFunction(element("tools", i), raw); err != nil {
				return nil, nil, nil, err
			}
			if custom == nil {
				custom = map[string]bool{}
			}
			custom[f.Name] = true
		case t.Type != "" && t.Type != "function":
			others = append(others, t.Type)
			continue
		case len(t.Function) > 0:
			if json.Unmarshal(t.Function, &f) != nil || f.Name == "" {
				field := join(element("tools", i), "function.name")
				return nil, nil, nil, bad(field, "%s is missing: want the tool's name", field)
			}
		case t.Name != "": // the form of the Responses API
			raw, err = wrapped(raw)
			if err != nil {
				return nil, nil, nil, err
			}
		default:
			field := join(element("tools", i), "function")
			return nil, nil, nil, bad(field, "%s is missing: want {\"type\": \"function\", \"function\": {\"name\": …}}", field)
		}
		kept = append(kept, raw)
	}
	if len(kept) == 0 {
		return nil, nil, others, nil
	}
	out, err = conversation.Marshal(kept)
	return out, custom, others, err
}

// asFunction returns a tool that takes a text as a function, and its name.
func asFunction(at string, raw json.RawMessage) (f json.RawMessage, name string, err error) {
	var t struct {
		customTool             // the form of the Responses API
		Custom     *customTool `json:"custom"`
	}
	if err := json.Unmarshal(raw, &t); err != nil {
		return nil, "", bad(at, "%s is %s: want {\"type\": \"custom\", \"custom\": {\"name\": …}}", at, show(raw))
	}
	of := t.customTool
	if t.Custom != nil {
		of = *t.Custom
	}
	if of.Name == "" {
		return nil, "", bad(join(at, "custom.name"), "%s is missing: want the tool's name", join(at, "custom.name"))
	}
	f, err = conversation.Marshal(conversation.CustomTool(of.Name, of.Description, of.Format))
	return f, of.Name, err
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
		kept, custom, others, err := functions(c.tools)
		if err != nil {
			return err
		}
		for _, kind := range others {
			if l.Strict {
				return unsupported("tools", "a tool is of type %.50q: only \"function\" and \"custom\" are supported", kind)
			}
			l.ignore("tools[].type=" + kind)
		}
		c.tools, c.custom = kept, custom
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

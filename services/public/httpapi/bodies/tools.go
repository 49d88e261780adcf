package bodies

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/conversation"
)

// tool is a tool as an API sends it.
type tool struct {
	kind, name, description string
	schema                  json.RawMessage
	format                  json.RawMessage // form of a custom tool's text
	inner                   []tool          // tools of a namespace
	strict                  bool            // its arguments follow schema
}

// asked returns a tool as the model is told of it.
func (t *tool) asked(name string) ask.Tool {
	f := conversation.Tool{Type: "function", Function: conversation.Function{Name: name, Description: t.description, Parameters: t.schema}}
	if t.kind == "custom" {
		f = conversation.CustomTool(name, t.description, t.format)
	}
	raw, _ := conversation.Marshal(f) // of strings and of JSON
	return ask.Tool{Name: name, JSON: raw, Custom: t.kind == "custom", Strict: t.strict}
}

// readTools reads the tools of chats. Those of another kind, such as a search that the server is to carry out, are left out. Odd schemas
// are left as they are.
func readTools(c *call, name string, s *source) error {
	left, wrong := s.limits.Text, error(nil) // the first that is wrong: that there are too many counts more
	err := s.array(name, maxNested+1, func(i int) error {
		at := element(name, i)
		if s.kind() != "an object" {
			return bad(at, "%s is %s: want an object", at, s.show())
		}
		var flat, nested, custom tool
		raw, err := s.taking(left, func() error {
			known := flat.fields(s)
			known["type"] = s.textAt(&flat.kind)
			known["function"] = func(name string) error { return s.lenient(name, nested.fields(s)) }
			known["custom"] = func(name string) error { return s.lenient(name, custom.fields(s)) }
			return s.lenient(at, known)
		})
		if left -= len(raw); err == nil && s.cut {
			err = tooLarge(name, name, s.limits.Text, s.limits.Text)
		}
		if err != nil {
			return err
		}
		wrong = cmp.Or(wrong, c.tool(at, slices.Clone(raw), &flat, &nested, &custom))
		return nil
	})
	return cmp.Or(err, wrong)
}

// fields are the readers of the fields of a function or of a custom tool.
func (t *tool) fields(s *source) readers {
	t.kind = "\x00"
	return readers{"name": s.textAt(&t.name), "description": s.longAt(&t.description), "parameters": s.jsonAt(&t.schema),
		"format": s.jsonAt(&t.format), "strict": s.boolAt(&t.strict)}
}

// lenient reads an object whose other fields go on to the template as they are.
func (s *source) lenient(at string, known readers) error {
	return s.object(at, func(name string) error {
		if read := known[name]; read != nil && !s.isNull() {
			return read(join(at, name))
		}
		for right := range known {
			if err := misspelt(join(at, name), name, right); err != nil {
				return err
			}
		}
		s.skip()
		return nil
	})
}

// tool adds a tool of a chat: written as chats write it, or flat as the Responses API does.
func (c *call) tool(at string, raw json.RawMessage, flat, nested, custom *tool) error {
	kind := strings.Trim(flat.kind, "\x00")
	is := func(t *tool) bool { return t.kind != "" } // it was there
	switch {
	case kind == "custom":
		of := flat
		if is(custom) {
			of = custom
		}
		if of.name == "" {
			return bad(join(at, "custom.name"), "%s is missing: want the tool's name", join(at, "custom.name"))
		}
		of.kind = kind
		c.Tools = append(c.Tools, of.asked(of.name))
	case kind != "" && kind != "function":
		if c.limits.Strict {
			return unsupported("tools", "a tool is of type %.50q: only \"function\" and \"custom\" are supported", kind)
		}
		c.limits.ignore("tools[].type=" + kind)
	case is(nested):
		if nested.name == "" {
			field := join(at, "function.name")
			return bad(field, "%s is missing: want the tool's name", field)
		}
		c.Tools = append(c.Tools, ask.Tool{Name: nested.name, JSON: raw, Strict: nested.strict})
	case flat.name != "":
		c.Tools = append(c.Tools, flat.asked(flat.name))
	default:
		field := join(at, "function")
		return bad(field, "%s is missing: want {\"type\": \"function\", \"function\": {\"name\": …}}", field)
	}
	return nil
}

// readToolChoice reads "none", "auto", "required", {"type": "function", "function": {"name": …}}, likewise of "custom", the same as the
// Responses API writes it, and OpenAI's allowed_tools. "any" and {"type": "tool", "name": …} are Anthropic's.
func readToolChoice(c *call, name string, s *source) error {
	switch s.kind() {
	case "a string":
		mode := ""
		if err := readText(name, s, &mode); err != nil {
			return err
		}
		return c.Choice.Mode(name, mode)
	case "an object":
	default:
		return bad(name, "%s is %s: want \"none\", \"auto\", \"required\" or an object that names a tool", name, s.show())
	}
	o, err := readChoice(name, s)
	switch {
	case err != nil:
		return err
	case o.kind == "allowed_tools":
		for _, t := range o.tools {
			c.Choice.Only = append(c.Choice.Only, t.name)
		}
		return c.Choice.Mode(name+".mode", or(o.mode, "auto"))
	case o.name != "":
		c.Choice.Only, c.Choice.Must = []string{o.name}, true
		return nil
	}
	return c.Choice.Mode(name+".type", o.kind)
}

// choice is an object that chooses among tools, or names one.
type choice struct {
	kind, mode, name, namespace string
	tools                       []choice
}

// readChoice reads a choice in the forms of chats and of the Responses API.
func readChoice(name string, s *source) (o choice, err error) {
	tools := func(name string) error {
		return s.array(name, maxNested, func(i int) error {
			one, err := readChoice(element(name, i), s)
			o.tools = append(o.tools, one)
			return err
		})
	}
	flat, function, custom := "", "", ""
	named := func(to *string) func(string) error {
		return func(name string) error { return s.lenient(name, readers{"name": s.textAt(to)}) }
	}
	err = s.lenient(name, readers{"type": s.textAt(&o.kind), "mode": s.textAt(&o.mode), "name": s.textAt(&flat),
		"namespace": s.textAt(&o.namespace), "function": named(&function), "custom": named(&custom), "tools": tools,
		"allowed_tools": func(name string) error {
			return s.lenient(name, readers{"mode": s.textAt(&o.mode), "tools": tools})
		}})
	o.name = or(or(function, custom), flat)
	return o, err
}

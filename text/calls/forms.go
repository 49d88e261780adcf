package calls

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/text/grammar"
)

// form is how a family writes calls, for a grammar. Formats say what a Reader understands, which is more.
type form struct {
	section     [2]string // around all calls
	lead        string    // before the first
	open, close string    // around each
	between     string    // between two
	list        bool      // the calls stand in one array between the marks
	single      bool      // there is one call
	write       func(*composer, Tool) grammar.Spec
}

// form returns how the models of a template write calls.
func (f *Format) form(template string) form {
	has := func(s string) bool { return strings.Contains(template, s) }
	switch first := f.openers; f.Name {
	case deepseek.Name:
		out := form{section: [2]string{f.dropped[0], f.dropped[1]}, open: first[0].mark, close: first[0].close}
		if out.write = writeNamed("", f.split, ""); has("```json") {
			out.between, out.write = "\n", writeNamed("function"+f.split, "\n```json\n", "\n```")
		}
		return out
	case kimi.Name:
		return form{section: [2]string{f.dropped[0], f.dropped[1]}, open: first[0].mark, close: first[0].close, write: writeNumbered}
	case mistral.Name:
		if has("[ARGS]") {
			return form{open: first[0].mark, write: writeNamed("", f.split, "")}
		}
		return form{open: first[0].mark, list: true, write: writeObject("arguments")}
	case functionGemma.Name, gemma4.Name:
		return form{open: first[0].mark, close: first[0].close, write: writeBraces}
	case qwenCoder.Name:
		return form{open: "<tool_call>\n<function=", close: "</function>\n</tool_call>", between: "\n", write: writeXML}
	case glm.Name:
		return form{open: first[0].mark, close: first[0].close, between: "\n", write: writePairs}
	case glm4.Name:
		return form{single: true, write: writeNamed("", "\n", "")}
	case functionary.Name:
		return form{between: ">>>", write: writeNamed("", "\n", "")}
	case pythonic.Name:
		return form{list: true, write: writePython}
	case granite.Name:
		return form{open: first[0].mark, list: true, write: writeObject("arguments")}
	case llama.Name:
		return form{single: true, write: writeObject("parameters")}
	case harmony.Name: // its calls are messages
		return form{single: true}
	}
	return form{open: hermes.mark + "\n", close: "\n" + hermes.close, between: "\n", write: writeObject("arguments")}
}

// writeObject writes {"name": NAME, "arguments": {…}}.
func writeObject(key string) func(*composer, Tool) grammar.Spec {
	return func(c *composer, t Tool) grammar.Spec {
		return sequence(c.text(`{"name": `+quote(t.Name)+`, "`+key+`": `), c.arguments(t), c.text("}"))
	}
}

// writeNamed writes a name and an object, with these texts around the name and behind the object.
func writeNamed(before, between, behind string) func(*composer, Tool) grammar.Spec {
	return func(c *composer, t Tool) grammar.Spec {
		return sequence(c.text(before+t.Name+between), c.arguments(t), c.text(behind))
	}
}

// writeNumbered writes functions.NAME:NUMBER, a mark and an object.
func writeNumbered(c *composer, t Tool) grammar.Spec {
	return sequence(c.text(functions+t.Name+":"), grammar.Spec{Regex: "0|[1-9][0-9]{0,2}"}, c.text(kimi.split), c.arguments(t))
}

// writeXML writes NAME> and a tag for each parameter.
func writeXML(c *composer, t Tool) grammar.Spec {
	return sequence(c.text(t.Name+">\n"), c.parameters(t, style{text: func(p parameter) grammar.Spec {
		return sequence(c.text("<parameter="+p.name+">\n"), c.bare(p, "\n</parameter>\n"))
	}, open: "<parameter="}))
}

// writePairs writes NAME and a pair of tags for each parameter.
func writePairs(c *composer, t Tool) grammar.Spec {
	return sequence(c.text(t.Name+"\n"), c.parameters(t, style{text: func(p parameter) grammar.Spec {
		return sequence(c.text("<arg_key>"+p.name+"</arg_key>\n<arg_value>"), c.bare(p, "</arg_value>\n"))
	}, open: "<arg_key>"}))
}

// writeBraces writes call:NAME{key:value,…}, with texts between the format's own quotes.
func writeBraces(c *composer, t Tool) grammar.Spec {
	quote := functionGemma.quote
	if strings.Contains(c.Template, gemma4.quote) {
		quote = gemma4.quote
	}
	return sequence(c.text("call:"+t.Name+"{"), c.parameters(t, style{between: ",", open: quote, text: func(p parameter) grammar.Spec {
		value := p.json()
		switch all := p.texts(); {
		case all != nil:
			value = sequence(c.text(quote), grammar.Spec{Choices: all}, c.text(quote))
		case p.is&texts != 0:
			value = sequence(c.text(quote), grammar.Spec{Until: &grammar.Until{Markers: []string{c.Mark(quote)}}})
			if p.is != texts && p.is != anyKind {
				value = either(value, p.json())
			}
		}
		return sequence(c.text(p.name+":"), value)
	}}), c.text("}"))
}

// writePython writes NAME(key=value, …).
func writePython(c *composer, t Tool) grammar.Spec {
	return sequence(c.text(t.Name+"("), c.parameters(t, style{between: ", ", open: "=", text: func(p parameter) grammar.Spec {
		return sequence(c.text(p.name+"="), p.json())
	}}), c.text(")"))
}

// bare returns a value without quotes up to a mark that ends it. A text is free, but for one of several.
func (c *composer) bare(p parameter, end string) grammar.Spec {
	switch all := p.texts(); {
	case all != nil:
		return sequence(grammar.Spec{Choices: all}, c.text(end))
	case p.is&texts != 0:
		return grammar.Spec{Until: &grammar.Until{Markers: []string{c.Mark(end)}}}
	}
	return sequence(p.json(), c.text(end))
}

// parameter is one of a tool's parameters.
type parameter struct {
	name     string
	schema   json.RawMessage // that stands alone
	is       kinds           // its values
	allowed  []json.RawMessage
	required bool
}

// json returns the parameter's values in JSON.
func (p *parameter) json() grammar.Spec { return grammar.Spec{Schema: p.schema} }

// texts returns the parameter's values if they are some texts; nil if they are not.
func (p *parameter) texts() (all []string) {
	if p.is != texts {
		return nil
	}
	for _, raw := range p.allowed {
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return nil
		}
		all = append(all, s)
	}
	return all
}

// style is how a form writes parameters.
type style struct {
	between string
	open    string // begins a parameter, for those of which nothing is known
	text    func(parameter) grammar.Spec
}

// parameters returns a tool's parameters in the order of its schema, each at most once and those that are required. A tool whose schema
// says more than that, or that is not held to it, has any of those that it names.
func (c *composer) parameters(t Tool, s style) grammar.Spec {
	all, why := parametersOf(t)
	if c.unheld {
		why = "no tool is held to its schema"
	}
	if why == "" {
		for _, p := range all {
			if _, err := grammar.Compile(s.text(p), grammar.Limits{}); err != nil && why == "" {
				why = p.name + ": " + err.Error()
			}
		}
	}
	if why != "" {
		c.loosen(t, why)
		for i := range all {
			all[i].is, all[i].allowed, all[i].schema = anyKind, nil, json.RawMessage("{}")
		}
	}
	for i := range all {
		all[i].required = all[i].required && c.held(t)
	}
	if s.between == "" {
		var out []grammar.Spec
		for _, p := range all {
			out = append(out, p.maybe(s.text(p)))
		}
		return sequence(out...)
	}
	var ways []grammar.Spec // by the parameter that comes first
	for first := range all {
		way := []grammar.Spec{s.text(all[first])}
		for _, p := range all[first+1:] {
			way = append(way, p.maybe(sequence(c.text(s.between), s.text(p))))
		}
		if ways = append(ways, sequence(way...)); all[first].required {
			return either(ways...)
		}
	}
	if len(ways) == 0 {
		return grammar.Spec{}
	}
	return optional(either(ways...))
}

// maybe returns s, or nothing if the parameter may be left out.
func (p *parameter) maybe(s grammar.Spec) grammar.Spec {
	if p.required {
		return s
	}
	return optional(s)
}

// parametersOf returns the parameters of a tool in the order of its schema. why: its schema says more than which parameters there are.
func parametersOf(t Tool) (all []parameter, why string) {
	if len(t.Parameters) == 0 {
		return nil, ""
	}
	var root struct {
		Properties  json.RawMessage `json:"properties"`
		Required    []string        `json:"required"`
		Defs        json.RawMessage `json:"$defs"`
		Definitions json.RawMessage `json:"definitions"`
	}
	keys := map[string]json.RawMessage{}
	if json.Unmarshal(t.Parameters, &root) != nil || json.Unmarshal(t.Parameters, &keys) != nil {
		return nil, "its parameters are no JSON Schema of an object"
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf", "$ref", "not", "if", "patternProperties", "minProperties",
		"dependentRequired"} {
		if keys[key] != nil {
			why = key + " beside the parameters has no form in the model's calls"
		}
	}
	s := newSchema(t.Parameters)
	d := json.NewDecoder(bytes.NewReader(root.Properties))
	if _, err := d.Token(); err != nil {
		return nil, why
	}
	for d.More() {
		key, err := d.Token()
		var raw json.RawMessage
		name, ok := key.(string)
		if err != nil || !ok || d.Decode(&raw) != nil {
			return nil, "its parameters are no JSON Schema of an object"
		}
		of := s.property(name)
		p := parameter{name: name, is: of.kinds(0), schema: alone(raw, root.Defs, root.Definitions),
			required: slices.Contains(root.Required, name)}
		if of != nil {
			p.allowed = of.allowed()
		}
		all = append(all, p)
	}
	return all, why
}

// alone returns a schema within another with what its references lead to.
func alone(raw, defs, definitions json.RawMessage) json.RawMessage {
	at := bytes.IndexByte(raw, '{')
	if at < 0 || defs == nil && definitions == nil {
		return raw
	}
	out := []byte("{")
	for _, d := range []struct {
		key string
		raw json.RawMessage
	}{{"$defs", defs}, {"definitions", definitions}} {
		if d.raw != nil {
			out = append(append(append(out, `"`+d.key+`":`...), d.raw...), ',')
		}
	}
	if rest := bytes.TrimSpace(raw[at+1:]); len(rest) > 0 && rest[0] == '}' {
		out = out[:len(out)-1]
	}
	return append(out, raw[at+1:]...)
}

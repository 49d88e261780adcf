package bodies

import (
	"encoding/json"

	"github.com/tandem-llm/tandem/text/grammar"
)

// constrain sets which answers are allowed, as the field of that name says. Errors: Invalid if another field has said it already.
func (c *call) constrain(name string, to grammar.Spec) error {
	if before := c.Said("constraint"); before != "" && before != name {
		return bad(name, "%s is there beside %s: want one of them, the answer has one form", name, before)
	}
	c.Answer = &to
	c.Say("constraint", name)
	return nil
}

// readResponseFormat reads {"type": "text"}, {"type": "json_object"} and {"type": "json_schema", "json_schema": {"schema": …}}. llama.cpp
// and others take the schema of a json_object beside its type.
func readResponseFormat(c *call, name string, s *source) error {
	kind, inner, outer, at := "", json.RawMessage(nil), json.RawMessage(nil), name+".json_schema.schema"
	err := s.fields(name, name, readers{"type": s.textAt(&kind), "schema": s.jsonAt(&outer), "json_schema": func(full string) error {
		return s.fields(full, full, readers{"schema": s.jsonAt(&inner), "name": s.labelAt(), "description": s.labelAt(),
			"strict": s.labelAt()})
	}})
	if inner == nil && outer != nil {
		inner, at = outer, name+".schema"
	}
	if err == nil {
		err = c.form(name, kind, at, inner)
	}
	return err
}

// labelAt passes a field that changes nothing.
func (s *source) labelAt() func(string) error {
	return func(string) error {
		s.skip()
		return nil
	}
}

// form sets the form of an answer by the name of its kind; schema is the value at that place, nil for none.
func (c *call) form(name, kind, at string, schema json.RawMessage) error {
	switch {
	case kind == "" || kind == "text":
		return nil
	case kind == "json_object" && schema == nil:
		return c.constrain(name, grammar.Spec{Object: true})
	case kind != "json_object" && kind != "json_schema":
		return unsupported(name, "%s.type is %.50q: only \"text\", \"json_object\" and \"json_schema\" are supported", name, kind)
	case schema == nil:
		return bad(at, "%s is missing: want a JSON Schema", at)
	}
	return c.constrain(at, grammar.Spec{Schema: schema})
}

// readSchemaOption reads a JSON Schema that the answer follows, as JSON or as a string that holds it. What asks for nothing is passed.
func readSchemaOption(c *call, name string, s *source) (err error) {
	var raw json.RawMessage
	switch s.kind() {
	case "a string":
		text := ""
		if text, err = readLong(name, s); err == nil && text != "" && !json.Valid([]byte(text)) {
			return bad(name, "%s is a string that is not JSON: want a JSON Schema", name)
		}
		raw = json.RawMessage(text)
	default:
		raw, err = s.json(name, name, s.limits.Text)
	}
	if text := compact(raw); err != nil || text == "" || text == "false" || text == "[]" {
		return err
	}
	return c.constrain(name, grammar.Spec{Schema: raw})
}

// readPattern reads a regular expression that the whole answer matches.
func readPattern(c *call, name string, s *source) error {
	if s.kind() != "a string" {
		return constraint(c, name, s)
	}
	pattern, err := readLong(name, s)
	if err != nil || pattern == "" {
		return err
	}
	return c.constrain(name, grammar.Spec{Regex: pattern})
}

// readAnswers reads a list of texts of which the answer is one.
func readAnswers(c *call, name string, s *source) error {
	if s.kind() != "an array" {
		return constraint(c, name, s)
	}
	var all []string
	err := s.array(name, maxNested, func(i int) error {
		text := ""
		err := s.longAt(&text)(element(name, i))
		all = append(all, text)
		return err
	})
	if err != nil || len(all) == 0 {
		return err
	}
	return c.constrain(name, grammar.Spec{Choices: all})
}

// readAnyObject reads whether the answer is a JSON object.
func readAnyObject(c *call, name string, s *source) error {
	on := false
	if err := readBool(name, s, &on); err != nil || !on {
		return err
	}
	return c.constrain(name, grammar.Spec{Object: true})
}

// readStructured reads vLLM's structured_outputs.
func readStructured(c *call, name string, s *source) error {
	if s.kind() != "an object" {
		return constraint(c, name, s)
	}
	known := readers{"disable_fallback": s.labelAt(), "disable_any_whitespace": s.labelAt(), "whitespace_pattern": s.labelAt(),
		"disable_additional_properties": s.labelAt()}
	for field, read := range map[string]reader{"json": readSchemaOption, "regex": readPattern, "choice": readAnswers,
		"json_object": readAnyObject, "grammar": constraint, "structural_tag": constraint} {
		known[field] = func(full string) error { return read(c, full, s) }
	}
	return s.fields(name, name, known)
}

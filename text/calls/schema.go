package calls

import (
	"encoding/json"
	"strings"
)

// kinds is a set of kinds of JSON values.
type kinds uint8

const (
	texts   kinds = 1 << iota
	numbers       // with integers
	booleans
	nulls
	objects
	arrays
	anyKind = texts | numbers | booleans | nulls | objects | arrays
)

var kindNames = map[string]kinds{"string": texts, "number": numbers, "integer": numbers, "boolean": booleans, "null": nulls,
	"object": objects, "array": arrays}

// schema is a JSON Schema as far as it says which kinds of values may stand where: type, enum, const, properties, items, anyOf, oneOf,
// allOf, $ref and OpenAPI's nullable. What is odd allows all. It is decoded where it is asked, once: of a large schema little is used.
// nil is a schema that allows all. Not safe for concurrent use.
type schema struct {
	raw     json.RawMessage
	root    *schema
	decoded bool
	asked   bool // kinds is being asked: a schema that refers to itself adds nothing
	known   bool // kinds is in is
	is      kinds
	refs    map[string]*schema // of the root: where pointers lead
	far     int                // of the root: how many of these lie deep
	search  int                // of the root: how many members have been looked for; else the last that was looked for in vain

	keys  map[string]json.RawMessage
	subs  map[string][]*schema // of anyOf and the like
	props map[string]*schema
}

// newSchema returns the schema of a tool's parameters.
func newSchema(raw json.RawMessage) *schema {
	s := &schema{raw: raw, refs: map[string]*schema{}}
	s.root = s
	return s
}

// maxSchema bounds how deep schemas refer to each other.
const maxSchema = 64

// key returns the value of a key, nil for none.
func (s *schema) key(name string) json.RawMessage {
	if !s.decoded {
		s.decoded = true
		_ = json.Unmarshal(s.raw, &s.keys) // what is no object allows all
		s.subs, s.props = map[string][]*schema{}, map[string]*schema{}
	}
	return s.keys[name]
}

// list returns the schemas in a key: of a list, or one alone.
func (s *schema) list(name string) []*schema {
	raw := s.key(name)
	if all, ok := s.subs[name]; ok || raw == nil {
		return all
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		list = []json.RawMessage{raw}
	}
	var all []*schema
	for _, x := range list {
		all = append(all, &schema{raw: x, root: s.root})
	}
	s.subs[name] = all
	return all
}

// within returns the schema of a name in a key that holds schemas by name, nil for none.
func (s *schema) within(key, name string) *schema {
	raw := s.key(key)
	if raw != nil && s.props[key] == nil {
		s.props[key] = s // it is decoded
		var all map[string]json.RawMessage
		_ = json.Unmarshal(raw, &all)
		for name, raw := range all {
			s.props[key+"\x00"+name] = &schema{raw: raw, root: s.root}
		}
	}
	return s.props[key+"\x00"+name]
}

// target returns the schema to which $ref leads, nil for none. Only a pointer within the tool's own schema is followed.
func (s *schema) target() *schema {
	raw, ref := s.key("$ref"), ""
	if raw == nil || json.Unmarshal(raw, &ref) != nil || !strings.HasPrefix(ref, "#") {
		return nil
	}
	found, ok := s.root.refs[ref]
	if !ok {
		found = s.root.at(strings.TrimPrefix(ref[1:], "/"))
		s.root.refs[ref] = found
	}
	return found
}

// maxFar bounds how many places deep in a schema are looked for.
const maxFar = 64

// at returns the schema at a JSON pointer (RFC 6901) without its first slash, nil for none.
func (s *schema) at(pointer string) *schema {
	steps := strings.Split(pointer, "/")
	for i := range steps {
		steps[i] = unescape.Replace(steps[i])
	}
	switch {
	case pointer == "":
		return s
	case len(steps) == 1:
		return &schema{raw: s.key(steps[0]), root: s}
	}
	to := s.within(steps[0], steps[1])
	if len(steps) == 2 || to == nil {
		return to
	}
	if s.far == maxFar {
		return nil
	}
	s.far++
	raw := to.raw
	for _, step := range steps[2:] {
		var in map[string]json.RawMessage
		_ = json.Unmarshal(raw, &in)
		raw = in[step]
	}
	return &schema{raw: raw, root: s}
}

var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// kinds returns which kinds of values a schema allows.
func (s *schema) kinds(depth int) kinds {
	if s == nil || depth > maxSchema || s.asked {
		return anyKind
	}
	if s.known {
		return s.is
	}
	s.asked = true
	is := s.types() & s.values()
	if t := s.target(); t != nil && !t.asked {
		is &= t.kinds(depth + 1)
	}
	for _, a := range s.list("allOf") {
		is &= a.kinds(depth + 1)
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		either := kinds(0)
		for _, a := range s.list(key) {
			if !a.asked && a.target() != s {
				either |= a.kinds(depth + 1)
			}
		}
		if either != 0 {
			is &= either
		}
	}
	if string(s.key("nullable")) == "true" {
		is |= nulls
	}
	if is == 0 { // it allows nothing, so nothing is known
		is = anyKind
	}
	s.asked, s.known, s.is = false, true, is
	return is
}

// types returns the kinds of the key type, or those that keys of one kind alone show.
func (s *schema) types() (is kinds) {
	var one string
	var list []string
	raw := s.key("type")
	switch {
	case raw == nil && s.key("properties") != nil:
		return objects
	case raw == nil && s.key("items") != nil:
		return arrays
	case raw == nil:
		return anyKind
	case json.Unmarshal(raw, &one) == nil:
		list = []string{one}
	default:
		_ = json.Unmarshal(raw, &list)
	}
	for _, name := range list {
		is |= kindNames[name]
	}
	if is == 0 {
		return anyKind
	}
	return is
}

// values returns the kinds of the values in enum and const.
func (s *schema) values() (is kinds) {
	for _, v := range s.allowed() {
		is |= kindOf(v)
	}
	if is == 0 {
		return anyKind
	}
	return is
}

// allowed returns the values of enum and const, nil where others are allowed, too.
func (s *schema) allowed() (all []json.RawMessage) {
	if raw := s.key("const"); raw != nil {
		return []json.RawMessage{raw}
	}
	_ = json.Unmarshal(s.key("enum"), &all)
	return all
}

// kindOf returns the kind of a JSON value.
func kindOf(v json.RawMessage) kinds {
	switch v = json.RawMessage(strings.TrimSpace(string(v))); {
	case len(v) == 0:
		return 0
	case v[0] == '"':
		return texts
	case v[0] == '{':
		return objects
	case v[0] == '[':
		return arrays
	case v[0] == 't', v[0] == 'f':
		return booleans
	case v[0] == 'n':
		return nulls
	}
	return numbers
}

// sub returns the schema of a member: of a property if name is one, else of an item. nil: all is allowed. Each schema is asked once.
func (s *schema) sub(name string, item bool, depth int) *schema {
	if depth > maxSchema || depth > 0 && s.search == s.root.search {
		return nil
	}
	if s != s.root {
		s.search = s.root.search
	}
	if item {
		if all := s.list("items"); len(all) == 1 {
			return all[0]
		}
	} else if p := s.within("properties", name); p != nil {
		return p
	} else if more := s.list("additionalProperties"); len(more) == 1 && s.key("properties") == nil {
		return more[0]
	}
	for _, key := range []string{"allOf", "anyOf", "oneOf"} {
		for _, a := range s.list(key) {
			if found := a.sub(name, item, depth+1); found != nil {
				return found
			}
		}
	}
	if t := s.target(); t != nil {
		return t.sub(name, item, depth+1)
	}
	return nil
}

// property returns the schema of a property, item that of an array's items; nil where all is allowed.
func (s *schema) property(name string) *schema { return s.member(name, false) }
func (s *schema) item() *schema                { return s.member("", true) }

func (s *schema) member(name string, item bool) *schema {
	if s == nil {
		return nil
	}
	s.key("") // decodes it
	at := "\x00" + name
	if item {
		at = "\x00\x00"
	}
	found, ok := s.props[at]
	if !ok {
		s.root.search++
		found = s.sub(name, item, 0)
		s.props[at] = found
	}
	return found
}

// value returns as JSON what is written without quotes: as a value of a kind that the schema allows, if it is one, else as a string.
func (s *schema) value(written string) string {
	is, plain := s.kinds(0), strings.TrimSpace(written)
	if is == texts {
		return quote(written)
	}
	if v, ok := word(plain); ok && is&kindOf(json.RawMessage(v)) != 0 {
		return v
	}
	if is&(objects|arrays) != 0 {
		if v, ok := repaired(plain); ok && is&kindOf(json.RawMessage(v)) != 0 {
			return v
		}
		p := parser{s: plain}
		if v, ok := p.value(':', s); ok && p.end() && is&(objects|arrays)&kindOf(json.RawMessage(v)) != 0 {
			return v
		}
	}
	if is&texts == 0 || is == anyKind { // a string in quotes
		if v := json.RawMessage(plain); json.Valid(v) && kindOf(v) == texts {
			return plain
		}
	}
	return quote(written)
}

// scalar returns a word of a form whose strings have quotes: a string only if the schema allows nothing that the word could be.
func (s *schema) scalar(w string) (string, bool) {
	v, ok := word(w)
	if is := s.kinds(0); ok && is&kindOf(json.RawMessage(v)) == 0 && v != "null" && is&texts != 0 {
		return quote(w), true
	}
	return v, ok
}

// word returns a number, a boolean or null in JSON, however models write it.
func word(w string) (string, bool) {
	switch w {
	case "true", "True", "TRUE":
		return "true", true
	case "false", "False", "FALSE":
		return "false", true
	case "null", "None", "NULL":
		return "null", true
	}
	return w, w != "" && number([]byte(w), true)
}

// quote returns s as a JSON string.
func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s)
	return strings.TrimSuffix(b.String(), "\n")
}

package grammar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// value is a JSON value that keeps the order of an object's members.
type value struct {
	kind    valueKind
	text    string         // of a number as written, of a string decoded
	keys    []string       // of an object,
	index   map[string]int // and where each is
	list    []*value       // an array's elements, or an object's members
	up      *value         // what it stands in,
	key     string         // and under which key or index
	id      int32
	checked uint8 // entered or passed: see builder.progress
}

const (
	entered = 1 + iota
	passed
)

type valueKind uint8

const (
	null valueKind = 1 << iota
	falsehood
	truth
	number
	text
	array
	object
)

// pointer is v's place as a JSON pointer.
func (v *value) pointer() string {
	if v.up == nil {
		return ""
	}
	return v.up.pointer() + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(v.key)
}

// get returns the member called key, nil if there is none or v is no object.
func (v *value) get(key string) *value {
	if i, ok := v.index[key]; ok {
		return v.list[i]
	}
	return nil
}

// reader reads a JSON text.
type reader struct {
	*json.Decoder
	depth int
	made  *int32
}

// readJSON reads a text of at most so many levels. made counts the values of all texts.
func readJSON(s []byte, depth int, made *int32) *value {
	r := reader{Decoder: json.NewDecoder(bytes.NewReader(s)), depth: depth, made: made}
	r.UseNumber()
	v := r.value(nil, "")
	if _, err := r.Token(); err != io.EOF {
		panic(invalid("something follows the JSON text"))
	}
	return v
}

func (r *reader) token() json.Token {
	t, err := r.Token()
	if err != nil {
		panic(invalid("%v", err))
	}
	return t
}

func (r *reader) value(up *value, key string) *value {
	v := &value{up: up, key: key, id: *r.made}
	*r.made++
	switch t := r.token().(type) {
	case nil:
		v.kind = null
	case bool:
		v.kind = falsehood
		if t {
			v.kind = truth
		}
	case json.Number:
		v.kind, v.text = number, t.String()
	case string:
		v.kind, v.text = text, t
	case json.Delim:
		if r.depth--; r.depth < 0 {
			panic(tooLarge("the schema is nested too deeply"))
		}
		if v.kind = array; t == '{' {
			v.kind, v.index = object, map[string]int{}
		}
		for r.More() {
			if v.kind == array {
				v.list = append(v.list, r.value(v, fmt.Sprint(len(v.list))))
				continue
			}
			key := r.token().(string)
			member := r.value(v, key)
			if i, again := v.index[key]; again {
				v.list[i] = member // the last counts, as in other parsers
				continue
			}
			v.index[key] = len(v.keys)
			v.keys, v.list = append(v.keys, key), append(v.list, member)
		}
		r.token()
		r.depth++
	}
	return v
}

// quote writes s as a JSON string: nothing is escaped that need not be.
func quote(s string) string {
	out := []byte{'"'}
	for i := range len(s) {
		switch j := strings.IndexByte(escapedAs, s[i]); {
		case j >= 0 && s[i] != '/':
			out = append(out, '\\', escapes[j])
		case s[i] < ' ':
			out = fmt.Appendf(out, `\u%04x`, s[i])
		default:
			out = append(out, s[i])
		}
	}
	return string(append(out, '"'))
}

// The white space that may stand behind a colon or comma, and inside a bracket.
func (b *builder) behind() (colon, comma, bracket string) {
	if b.indent {
		return string([]byte{blankMark}), string([]byte{breakMark}), string([]byte{breakMark})
	}
	return string([]byte{blankMark}), string([]byte{blankMark}), ""
}

// object is an object of these members in their order; extra may be nil.
func (b *builder) object(fields []field, extra *field) *node {
	_, _, bracket := b.behind()
	return b.sequence(b.marked("{"+bracket), b.node(node{kind: members, fields: fields, extra: extra}), b.marked(bracket+"}"))
}

// field is a member whose name is one of the strings of name.
func (b *builder) field(name, value *node) field {
	colon, comma, _ := b.behind()
	first := b.sequence(name, b.marked(":"+colon), value)
	return field{first: first, next: b.sequence(b.marked(","+comma), first)}
}

// named is a member of this name.
func (b *builder) named(name string, value *node, required bool) field {
	colon, comma, _ := b.behind()
	form := func(before string) *node { return b.sequence(b.marked(before+quote(name)+":"+colon), value) }
	return field{first: form(""), next: form("," + comma), required: required}
}

// array is an array of least to most elements.
func (b *builder) array(item *node, least, most int32) *node {
	_, comma, bracket := b.behind()
	list := b.node(node{kind: repeat, parts: []*node{item, b.marked("," + comma)}, lo: least, hi: most})
	return b.sequence(b.marked("["+bracket), list, b.marked(bracket+"]"))
}

// anyString accepts every text. A string's length is counted by its node.
func (b *builder) anyString() *automaton {
	return b.automaton("string", func() *automaton {
		return b.lengths(0, unbounded)
	})
}

// Digits of a number that has no bounds: more are hardly meant, and a model that has begun to repeat a digit must come to an end.
const maxDigits = 40

// anyNumber accepts the numbers that every parser takes: their exponents have two digits at most.
func (b *builder) anyNumber() *automaton {
	return b.automaton("number", func() *automaton {
		return b.regex(fmt.Sprintf(`-?(0|[1-9][0-9]{0,%d})(\.[0-9]{1,%d})?([eE][+-]?[0-9]{1,2})?`, maxDigits-1, maxDigits), whole)
	})
}

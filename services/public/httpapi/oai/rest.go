package oai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
)

// Shape says which fields of another API's bodies are heard, so that no other is dropped without a word.
type Shape struct {
	Body    any               // a struct, whose tags name the fields of a body, and of the structs in it
	Inner   map[string]any    // structs of what is kept as it is written, by path, as "messages[].content[]"; nil: nothing hears it there
	Strict  bool              // the values that a server with strict fields takes are no cause to name a field
	Ignored func(name string) // is called with the path of each field that nothing hears, but of null
}

// Rest reads a body that Unmarshal took. It returns those of its own fields that the shape lacks and that have the same meaning in chats,
// such as seed or top_k, and tells Ignored the others, also those of objects within. Errors: Unsupported for fields that would change what
// the answer means; Invalid for JSON that chats do not take either.
func (h Shape) Rest(body []byte) (map[string]json.RawMessage, error) {
	w := walk{Shape: h, source: newSource(bytes.NewReader(body), Limits{Text: len(body), Ignored: h.Ignored}),
		types: map[reflect.Type]map[string]reflect.Type{}, out: map[string]json.RawMessage{}}
	return w.out, w.outcome(w.value("", reflect.TypeOf(h.Body)))
}

// walk is one Rest under way.
type walk struct {
	Shape
	*source
	types map[reflect.Type]map[string]reflect.Type // of fields, by their names in lower case
	out   map[string]json.RawMessage
}

// value passes the next value, which t holds.
func (w *walk) value(path string, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	inner, kept := w.Inner[path]
	if kept {
		t = reflect.TypeOf(inner)
	}
	switch kind := w.kind(); {
	case kind == "an object" && t.Kind() == reflect.Struct:
		return w.fields(path, t)
	case kind == "an array" && (t.Kind() == reflect.Slice && t != rawMessage || w.Inner[path+"[]"] != nil):
		return w.array(path, math.MaxInt, func(int) error { return w.value(path+"[]", t.Elem()) })
	}
	w.skip()
	return nil
}

// fields passes an object, whose fields t has.
func (w *walk) fields(path string, t reflect.Type) error {
	known := w.types[t]
	if known == nil {
		known = map[string]reflect.Type{}
		for _, f := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous {
				known[strings.ToLower(or(name, f.Name))] = f.Type
			}
		}
		w.types[t] = known
	}
	return w.object(path, func(name string) error {
		full := join(path, name)
		of, heard := known[strings.ToLower(name)] // as encoding/json finds them
		if inner, said := w.Inner[full]; said && inner == nil {
			heard = false
		}
		switch {
		case heard:
			return w.value(full, of)
		case path == "" && !w.isNull():
			return w.own(name)
		}
		return w.unknown(full, full)
	})
}

// own reads a field of the body that the shape lacks.
func (w *walk) own(name string) error {
	if _, said := w.Inner[name]; !said && Common(name) {
		w.out[name] = slices.Clone(w.raw(w.limits.Text))
		return nil
	}
	if f := foreign[name]; f != nil {
		return f(nil, name, w.source)
	}
	if f := strict[name]; f != nil && w.Strict {
		return f(nil, name, w.source)
	}
	return w.unknown(name, name)
}

// apart are fields of chats and completions that another API has its own for, or none.
var apart = []string{"model", "n", "stream", "stream_options"}

// Common reports whether a field means the same in every API that lacks one of its own for it.
func Common(name string) bool {
	return !slices.Contains(apart, name) && (common[name] != nil || aliases[name] != nil || new(variables).reader(name) != nil)
}

var rawMessage = reflect.TypeFor[json.RawMessage]()

// Int is an integer in a body that is translated. As elsewhere, 16.0 and 1.6e1 are integers too.
type Int int

// UnmarshalJSON implements json.Unmarshaler.
func (n *Int) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	v, err := wholeNumber(raw)
	if err != nil {
		_, kind, _ := strings.Cut(newSource(bytes.NewReader(raw), Limits{}).kind(), " ")
		if kind == "number" {
			kind += " " + show(raw)
		}
		return &json.UnmarshalTypeError{Value: kind, Type: reflect.TypeFor[int]()}
	}
	*n = Int(v)
	return nil
}

// Tokens reads an array of token ids, each below vocab, at most most of them. Errors: Invalid, with the place.
func Tokens(name string, raw json.RawMessage, vocab, most int) ([]tandem.Token, error) {
	ids, n, err := readTokens(name, newSource(bytes.NewReader(raw), Limits{}), most)
	if err == nil && n > most {
		err = bad(name, "%s has %d tokens: want at most %d", name, n, most)
	}
	for i, t := range ids {
		if err == nil && (t < 0 || int(t) >= vocab) {
			err = bad(element(name, i), "%s is %d: vocabulary has %d", element(name, i), t, vocab)
		}
	}
	return ids, err
}

// words are JSON's types that a field of a Go type wants.
var words = map[reflect.Kind]string{reflect.String: "a string", reflect.Bool: "true or false", reflect.Int: "an integer",
	reflect.Float64: "a number", reflect.Slice: "an array", reflect.Map: "an object", reflect.Struct: "an object"}

// typeError returns the error of a field of a wrong type.
func typeError(t *json.UnmarshalTypeError) error {
	return bad(t.Field, "%s is a JSON %s: want %s", t.Field, t.Value, or(words[t.Type.Kind()], fmt.Sprint(t.Type)))
}

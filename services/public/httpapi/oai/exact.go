package oai

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync"
)

// What encoding/json takes and a chat's reader refuses: names of fields in other capitals, fields that are there twice, halves of
// characters. A filter in front of this server would read another request. So what it decodes is read by a source first.

// ReadWhole reads a body that is to be decoded as a whole. It returns how many bytes that may take, beside the body. Errors: Invalid.
func ReadWhole(from io.Reader) (body []byte, memory int, err error) {
	in := checked{from: from}
	body, err = io.ReadAll(&in)
	const nested, value = 768, 64 // bytes of the largest element of an array that a reader has, with its message and its JSON; of others
	return body, in.g.counts.Nested*nested + in.g.counts.Values*value, err
}

// Unmarshal decodes a body of an API into to. Fields have the names of their tags, else their Go names in small letters. Errors: Invalid,
// with the field.
func Unmarshal(body []byte, to any) error {
	if err := check("", body, reflect.TypeOf(to)); err != nil {
		return err
	}
	err := json.Unmarshal(body, to)
	var t *json.UnmarshalTypeError
	switch {
	case errors.As(err, &t) && t.Field != "":
		return typeError(t)
	case err != nil:
		return bad("", "the body is not a JSON object: %w", err)
	}
	return nil
}

// UnmarshalPart decodes a value at some place of a body that was read. Errors: Invalid, with the field; the value is not want.
func UnmarshalPart(at string, raw json.RawMessage, to any, want string) error {
	if err := check(at, raw, reflect.TypeOf(to)); err != nil {
		return err
	}
	err := json.Unmarshal(raw, to)
	var t *json.UnmarshalTypeError
	switch {
	case errors.As(err, &t) && t.Field != "":
		t.Field = join(at, t.Field)
		return typeError(t)
	case err != nil:
		return bad(at, "%s is not %s", at, want)
	}
	return nil
}

// check refuses a value that is read otherwise than it is written when it is decoded into a type.
func check(at string, raw []byte, t reflect.Type) error {
	s := newSource(bytes.NewReader(raw), Limits{})
	s.in.g.numbers = true
	return s.outcome(exact(at, s, t))
}

// exact reads a value that is to be decoded into a type, and refuses names of fields that are only nearly its names.
func exact(at string, s *source, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch kind := s.kind(); {
	case t.Kind() == reflect.Struct && kind == "an object":
		known := fieldsOf(t)
		return s.object(at, func(name string) error {
			if of, ok := known[name]; ok {
				return exact(join(at, name), s, of)
			}
			for right := range known {
				if strings.EqualFold(name, right) {
					return bad(join(at, name), "unknown field %.100s: want %s, in small letters", join(at, name), right)
				}
			}
			s.skip()
			return nil
		})
	case t.Kind() == reflect.Slice && holdsStructs(t.Elem()) && kind == "an array":
		return s.array(at, maxValues, func(i int) error { return exact(element(at, i), s, t.Elem()) })
	}
	s.skip()
	return nil
}

func holdsStructs(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct
}

// fieldTypes are map[string]reflect.Type by the type of their struct.
var fieldTypes sync.Map

// fieldsOf returns the fields of a struct by their names in JSON.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if known, ok := fieldTypes.Load(t); ok {
		return known.(map[string]reflect.Type)
	}
	known := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous {
			known[or(name, strings.ToLower(f.Name))] = f.Type
		}
	}
	fieldTypes.Store(t, known)
	return known
}

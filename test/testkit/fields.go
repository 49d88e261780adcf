package testkit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"testing"
)

// Printed is what a command prints with --json.
type Printed struct {
	Command string
	Result  any // a pointer
}

// JSONFields compares the fields of results, with their types, in their order, with a golden file: scripts read them.
func JSONFields(t *testing.T, golden string, all []Printed) {
	t.Helper()
	var got bytes.Buffer
	for _, c := range all {
		fmt.Fprint(&got, c.Command)
		fill(reflect.ValueOf(c.Result).Elem())
		text, err := json.Marshal(c.Result)
		if err == nil {
			err = fields(&got, text, "  ")
		}
		if err != nil {
			t.Fatalf("%s: %v", c.Command, err)
		}
	}
	Golden(t, golden, got.Bytes())
}

// fill sets all that can be set in v, lists and maps to one element, so that no field is left out for being empty.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("s")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Interface:
		v.Set(reflect.ValueOf("s"))
	default:
		if v.CanInt() {
			v.SetInt(1)
		} else if v.CanUint() {
			v.SetUint(1)
		} else {
			v.SetFloat(1)
		}
	}
}

// fields writes the kind of a JSON value, and below it the fields of an object or the elements of a list.
func fields(to io.Writer, value json.RawMessage, indent string) error {
	kinds := map[byte]string{'{': "", '[': "", '"': " string", 't': " bool", 'f': " bool", 'n': " null"}
	kind, known := kinds[value[0]]
	if !known {
		kind = " number"
	}
	fmt.Fprintln(to, kind)
	if kind != "" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(value))
	if _, err := d.Token(); err != nil { // the bracket
		return err
	}
	for d.More() {
		name := json.Token("[]")
		if value[0] == '{' {
			name, _ = d.Token()
		}
		fmt.Fprintf(to, "%s%s", indent, name)
		var below json.RawMessage
		if err := d.Decode(&below); err != nil {
			return err
		}
		if err := fields(to, below, indent+"  "); err != nil {
			return err
		}
	}
	return nil
}

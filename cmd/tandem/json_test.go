package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"testing"

	"github.com/tandem-llm/tandem/testkit"

	"github.com/tandem-llm/tandem/bench"
	"github.com/tandem-llm/tandem/bench/guesses"
	"github.com/tandem-llm/tandem/bench/system"
	"github.com/tandem-llm/tandem/cmd/tandem/config"
	"github.com/tandem-llm/tandem/modelfile/convert"
	"github.com/tandem-llm/tandem/profile"
)

// TestJSONFields: what --json prints keeps its fields, with their types, in this order. Scripts read them.
func TestJSONFields(t *testing.T) {
	var got bytes.Buffer
	for _, c := range []struct {
		command string
		result  any
	}{
		{"generate", new(generation)},
		{"up", new(upResult)},
		{"health", new(healthResult)},
		{"ps", new(psResult)},
		{"logits", new(logitsResult)},
		{"model info", new(modelInfo)},
		{"model quantize, model expand, model random", new(convert.Result)},
		{"bench kernels", new(bench.KernelsResult)},
		{"bench decode", new(bench.DecodeResult)},
		{"bench experts", new(bench.ExpertsResult)},
		{"bench guesses", new(guesses.Result)},
		{"bench system", new(system.Result)},
		{"profile", new(profile.Plan)},
		{"profile --explain", new(profile.Decision)},
		{"config", new(config.Setting)},
		{"version", new(versionInfo)},
	} {
		fmt.Fprint(&got, c.command)
		fill(reflect.ValueOf(c.result).Elem())
		var text bytes.Buffer
		if err := printJSON(&text, c.result); err != nil {
			t.Fatal(err)
		}
		if err := fields(&got, text.Bytes(), "  "); err != nil {
			t.Fatalf("%s: %v", c.command, err)
		}
	}
	testkit.Golden(t, "testdata/json.golden", got.Bytes())
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

package settings

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Marshal writes the settings in *v, a struct, as a file of settings: those that differ from their defaults. A process that reads it has
// the same values.
func Marshal(v any) []byte {
	var b bytes.Buffer
	each(reflect.ValueOf(v).Elem(), "", func(s Setting, v reflect.Value) {
		plain := reflect.New(v.Type()).Elem()
		if s.fill(plain); reflect.DeepEqual(v.Interface(), plain.Interface()) {
			return
		}
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		fmt.Fprintf(&b, "%s: ", s.Key)
		if list, ok := v.Interface().([]string); ok {
			items := make([]string, len(list))
			for i, item := range list {
				items[i] = quoted(item)
			}
			fmt.Fprintf(&b, "[%s]\n", strings.Join(items, ", "))
			return
		}
		fmt.Fprintln(&b, quoted(text(v)))
	})
	return b.Bytes()
}

// text returns a value as a flag takes it.
func text(v reflect.Value) string {
	switch v := v.Interface().(type) {
	case Size: // not rounded
		return fmt.Sprint(int64(v))
	case GPUShare:
		return fmt.Sprint(int64(v))
	case []int:
		return strings.Trim(strings.ReplaceAll(fmt.Sprint(v), " ", ","), "[]")
	}
	return fmt.Sprint(v.Interface())
}

// quoted writes a text as YAML: in quotes, or in base64 if YAML cannot hold it, as the name of a file that is not UTF-8.
func quoted(s string) string {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return `!!binary "` + base64.StdEncoding.EncodeToString([]byte(s)) + `"`
	}
	out, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string
	}
	return string(out)
}

// Default returns a struct of settings with their defaults.
func Default[T any]() (out T) {
	each(reflect.ValueOf(&out).Elem(), "", Setting.fill)
	return out
}

// fill gives v the default of s.
func (s Setting) fill(v reflect.Value) {
	if s.Default == "" {
		return
	}
	var err error
	switch to := v.Addr().Interface().(type) {
	case encoding.TextUnmarshaler:
		err = to.UnmarshalText([]byte(s.Default))
	case *string:
		*to = s.Default
	case *time.Duration:
		*to, err = time.ParseDuration(s.Default)
	default:
		err = json.Unmarshal([]byte(s.Default), to) // numbers and booleans
	}
	if err != nil {
		panic(fmt.Sprintf("settings: default %q of %s: %v", s.Default, s.Key, err))
	}
}

// Package calls takes apart what a chat model writes: thoughts, text, and calls of tools.
//
// Each family of models writes calls in a form of its own, which its chat template shows: see Find. A Reader is given the output piece by
// piece, cut anywhere, and returns pieces that say what they are. Its rules:
//
//  1. What it returns does not depend on where the output was cut.
//  2. No piece holds a marker or a part of one.
//  3. Nothing is lost. What looks like a call and is none is text; of a call that breaks off, what came is returned.
//  4. A thought is never searched for calls.
package calls

import (
	"encoding/json"
	"slices"
	"strings"
)

// Kind says what a piece is.
type Kind uint8

const (
	Text      Kind = iota // of the answer
	Thought               // of what the model thinks before it answers
	Begin                 // a call begins; the piece's text is the name of the tool
	Arguments             // of the call that has begun: a piece of a JSON object
)

// Piece is a part of an output.
type Piece struct {
	Kind Kind
	Call int // index of the call, from 0; of Begin and Arguments
	Text string
}

// Tool is a tool that the model may call.
type Tool struct {
	Name string
	// Types are the types of the parameters in JSON Schema, where they have one. Forms that write values without quotes need them.
	Types map[string]string
}

// Tools are the tools that a request offers.
type Tools []Tool

// Parse reads tools from the array of an OpenAI request, as far as a Reader needs them. What it does not understand it leaves out: an odd
// schema never costs a request.
func Parse(array json.RawMessage) Tools {
	var all []struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
		Function   struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	}
	var out Tools
	if json.Unmarshal(array, &all) != nil {
		return nil
	}
	for _, t := range all {
		name, parameters := t.Function.Name, t.Function.Parameters
		if name == "" {
			name, parameters = t.Name, t.Parameters
		}
		if name != "" {
			out = append(out, Tool{Name: name, Types: types(parameters)})
		}
	}
	return out
}

// types returns the types of an object's properties.
func types(schema json.RawMessage) map[string]string {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return nil
	}
	out := map[string]string{}
	for name, raw := range s.Properties {
		var p struct {
			Type any   `json:"type"`
			Enum []any `json:"enum"`
		}
		if json.Unmarshal(raw, &p) != nil {
			continue
		}
		switch t := p.Type.(type) {
		case string:
			out[name] = t
		case []any: // ["string", "null"]: a string unless it is written null
			if len(t) > 0 && slices.Contains(t, any("string")) {
				out[name] = "string?"
			}
		case nil:
			if len(p.Enum) > 0 && !slices.ContainsFunc(p.Enum, func(v any) bool { _, ok := v.(string); return !ok }) {
				out[name] = "string"
			}
		}
	}
	return out
}

// find returns the tool of that name, nil for none. Small models write read where Read is offered: if no name is equal, the only one that
// differs in its capitals alone is meant.
func (t Tools) find(name string) *Tool {
	var alike *Tool
	for i := range t {
		switch {
		case t[i].Name == name:
			return &t[i]
		case !strings.EqualFold(t[i].Name, name):
		case alike != nil:
			return nil
		default:
			alike = &t[i]
		}
	}
	return alike
}

// value returns a value that is written without quotes as JSON, by the type of the parameter.
func (t Tools) value(tool, parameter, written string) string {
	kind := ""
	if of := t.find(tool); of != nil {
		kind = of.Types[parameter]
	}
	plain := strings.TrimSpace(written)
	switch {
	case kind == "string", kind == "string?" && plain != "null":
		return quote(written)
	case json.Valid([]byte(plain)):
		return plain
	case kind == "boolean" && (plain == "True" || plain == "False"):
		return strings.ToLower(plain)
	case plain == "None":
		return "null"
	}
	return quote(written)
}

// quote returns s as a JSON string.
func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s)
	return strings.TrimSuffix(b.String(), "\n")
}

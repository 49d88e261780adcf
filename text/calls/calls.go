// Package calls takes apart what a chat model writes: thoughts, text, and calls of tools.
//
// Each family of models writes calls in a form of its own, which its chat template shows: see Find. A Reader is given the output piece by
// piece, cut anywhere, and returns pieces that say what they are. Its rules:
//
//  1. What it returns does not depend on where the output was cut.
//  2. No piece holds a marker of a call that was told, or a part of one.
//  3. Nothing is lost. A call is told when it is complete: its arguments are one piece, a JSON object. What looks like a call and is none,
//     or breaks off, is text, with its markers.
//  4. A thought stands at the beginning of an answer; a later marker of one is text. A call in a thought counts only if the thought is
//     never closed and the model has ended the output by itself.
package calls

import (
	"encoding/json"
	"strings"
)

// Kind says what a piece is.
type Kind uint8

const (
	Text      Kind = iota // of the answer
	Thought               // of what the model thinks before it answers
	Begin                 // a call begins; the piece's text is the name of the tool
	Arguments             // of the call that has begun: a JSON object
)

// Piece is a part of an output.
type Piece struct {
	Kind Kind
	Call int // index of the call, from 0; of Begin and Arguments
	Text string
}

// Tool is a tool that the model may call.
type Tool struct {
	Name       string
	Parameters json.RawMessage // their JSON Schema. Forms that write values without quotes need it
	Strict     bool            // arguments are to follow it: see Format.Allowed
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
			out = append(out, Tool{Name: name, Parameters: parameters})
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

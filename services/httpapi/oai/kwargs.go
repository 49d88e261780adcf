package oai

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// Conversation is what a prompt is made of by the model's chat template.
type Conversation struct {
	Messages  []Message
	Tools     json.RawMessage // a JSON array, empty for none
	Must      bool            // the model is to call one of the tools
	Single    bool            // and not several
	Continue  bool            // the last message is the beginning of the answer
	Variables Variables
}

// Variables are further variables of a chat template, as JSON.
type Variables map[string]json.RawMessage

// reserved are variables that the server sets, and names that other servers refuse in chat_template_kwargs.
var reserved = []string{"messages", "tools", "bos_token", "eos_token", "add_generation_prompt",
	"continue_final_message", "chat_template", "tokenize"}

// ranks of a variable: what says it more plainly wins, whatever the order in the body.
const (
	concluded = iota // from a field of another name
	field            // a field of its own
	kwarg            // in chat_template_kwargs
)

// variables collects the variables of one body.
type variables struct {
	of   Variables
	rank map[string]int
}

func (v *variables) set(name string, raw []byte, rank int) {
	if v.of == nil {
		v.of, v.rank = Variables{}, map[string]int{}
	}
	if _, there := v.of[name]; !there || rank >= v.rank[name] {
		v.of[name], v.rank[name] = slices.Clone(raw), rank
	}
}

// reader returns the reader of a field of a chat that gives the template a variable; nil for other fields.
func (v *variables) reader(name string) func(string, *source) error {
	switch name {
	case "chat_template_kwargs":
		return v.readKwargs
	case "enable_thinking":
		return v.readThinking
	case "reasoning_effort":
		return v.readEffort
	}
	return nil
}

// readKwargs reads an object of variables. Those that the template does not read are ignored.
func (v *variables) readKwargs(name string, s *source) error {
	left := maxSmall
	return s.object(name, func(key string) error {
		full := join(name, key)
		if slices.Contains(reserved, key) {
			return bad(full, "%s cannot be set: the server sets it", full)
		}
		if s.limits.Reads != nil && !s.limits.Reads(key) {
			return s.unknown(full, full)
		}
		raw := s.raw(left)
		if left -= len(raw) + len(key); left < 0 {
			return bad(name, "%s has more than %d bytes", name, maxSmall)
		}
		v.set(key, raw, kwarg)
		return nil
	})
}

func (v *variables) readThinking(name string, s *source) error {
	if !s.limits.reads(name) {
		return s.unknown(name, name)
	}
	on := false
	if err := readBool(name, s, &on); err != nil {
		return err
	}
	v.set(name, s.kept, field)
	return nil
}

// readEffort reads how long the model should think. "none" asks what enable_thinking: false asks, where the template reads that alone.
func (v *variables) readEffort(name string, s *source) error {
	reads := s.limits.reads(name)
	if !reads && !s.limits.reads("enable_thinking") && !s.limits.Strict {
		return s.unknown(name, name)
	}
	effort := ""
	if err := readText(name, s, &effort); err != nil {
		return err
	}
	switch {
	case reads:
		raw, _ := json.Marshal(effort)
		v.set(name, raw, field)
	case effort == "none":
		v.set("enable_thinking", []byte("false"), concluded)
	case s.limits.Strict:
		return unsupported(name, "%s is %.50q: the chat template does not read it, only \"none\" is supported", name, effort)
	default:
		s.limits.ignore(name)
	}
	return nil
}

// reads reports whether the chat template reads a variable.
func (l Limits) reads(name string) bool { return l.Reads != nil && l.Reads(name) }

// readTools reads an array of descriptions as it is written.
func readTools(to *json.RawMessage) func(string, *source) error {
	return func(name string, s *source) error {
		if s.kind() != "an array" {
			return bad(name, "%s is %s: want an array", name, s.show())
		}
		raw := s.raw(s.limits.Text)
		if !bytes.HasSuffix(raw, []byte("]")) { // it was cut
			return tooLarge(name, name, len(raw), s.limits.Text)
		}
		if compact(raw) != "[]" {
			*to = slices.Clone(raw)
		}
		return nil
	}
}

// ParseVariables reads variables from a JSON object. Errors: Invalid.
func ParseVariables(text string) (Variables, error) {
	var v variables
	s := newSource(strings.NewReader(text), Limits{Strict: true})
	if kind := s.kind(); kind != "an object" {
		return nil, s.outcome(bad("", "the value is %s: want a JSON object", kind))
	}
	return v.of, s.outcome(v.readKwargs("", s))
}

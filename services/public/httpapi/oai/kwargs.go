package oai

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/tandem-llm/tandem/services/public/conversation"
)

// variables collects the variables of one body.
type variables struct{ conversation.Asked }

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
	left := conversation.MostVariables
	return s.object(name, func(key string) error {
		full := join(name, key)
		if err := conversation.Settable(full, key); err != nil {
			return err
		}
		if s.limits.Reads != nil && !s.limits.Reads(key) {
			return s.unknown(full, full)
		}
		raw := s.raw(left)
		if left -= len(raw) + len(key); left < 0 {
			return bad(name, "%s has more than %d bytes", name, conversation.MostVariables)
		}
		v.Set(key, raw)
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
	v.Think(on)
	return nil
}

// readEffort reads how long the model should think. "none" asks what enable_thinking: false asks, where the template reads that alone.
func (v *variables) readEffort(name string, s *source) error {
	if !s.limits.reads(name) && !s.limits.reads("enable_thinking") && !s.limits.Strict {
		return s.unknown(name, name)
	}
	effort := ""
	if err := readText(name, s, &effort); err != nil {
		return err
	}
	switch {
	case v.Effort(effort, s.limits.reads):
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

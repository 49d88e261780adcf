package responses

import (
	"bytes"
	"encoding/json"

	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// Names are this API's names of fields of chats.
var Names = map[string]string{"messages": "input", "reasoning_effort": "reasoning.effort"}

// heard says which fields have an effect, or say what nobody asks to be done: ids and states of items that an earlier answer had.
func heard(strict bool, ignored func(string)) oai.Shape {
	type label = any
	type part1 struct {
		part
		Annotations, Logprobs label
	}
	type item1 struct {
		item
		ID, Status, Phase label
	}
	return oai.Shape{Body: request{}, Strict: strict, Ignored: ignored, Inner: map[string]any{
		"input[]": item1{}, "input[].content[]": part1{}, "input[].output[]": part1{}, "instructions[]": item1{},
		"instructions[].content[]": part1{}}}
}

// mostMetadata is the size of metadata that comes back, in bytes: sixteen pairs of OpenAI's longest names and values are less.
const mostMetadata = 64 << 10

// more adds what an answer repeats without its having an effect, or under another name.
func (e *Echo) more(r *request, rest map[string]json.RawMessage, ignored func(string)) error {
	for _, name := range []string{"max_tokens", "max_completion_tokens"} {
		if raw := rest[name]; e.MaxTokens == nil {
			_ = json.Unmarshal(raw, &e.MaxTokens)
		}
	}
	if e.MaxTokens != nil && *e.MaxTokens < 0 { // no limit
		e.MaxTokens = nil
	}
	e.Metadata = json.RawMessage("{}")
	if raw := bytes.TrimSpace(r.Metadata); oai.Asks(raw) {
		if raw[0] != '{' || len(raw) > mostMetadata {
			return oai.Bad("metadata", "metadata is %.50s: want an object of at most %d bytes", raw, mostMetadata)
		}
		e.Metadata = raw
	}
	if r.Reasoning != nil {
		e.Reasoning.Effort = r.Reasoning.Effort
	}
	if e.Text.Format.Type = "text"; r.format() != nil && r.format().Type != "" {
		e.Text.Format = *r.format()
	}
	if r.Store { // no answer is kept
		ignored("store")
	}
	if r.Truncation != "" && r.Truncation != "disabled" {
		ignored("truncation")
	}
	return nil
}

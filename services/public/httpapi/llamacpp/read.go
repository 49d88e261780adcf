// Package llamacpp translates the native API of llama.cpp's server into completions and back: the fields of a body become those of
// /v1/completions, so that one decoder checks all. What that server would do otherwise, and what changes the answer's meaning, is refused
// by name; fields that only say how fast or where to compute have no effect.
package llamacpp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// Plan is a body as a completion.
type Plan struct {
	Body   json.RawMessage // of /v1/completions
	Gap    bool            // the text between its prompt and its suffix is asked for
	Files  []tandem.Excerpt
	Mixed  map[int][]Part // prompts, by index, that are made of texts and tokens; Body has an empty one in their place
	Fields []string       // of the answer; nil: all
	Tokens bool           // the answer has the tokens
	Probs  oai.Int        // how many of the likeliest tokens are told beside each
	Times  bool           // each piece of a stream has timings
}

// Part is a text or, if Text is nil, a token.
type Part struct {
	Text  *string
	Token tandem.Token
}

// Options of a translation.
type Options struct {
	Ignored func(name string)                // is called with what has no effect
	Encode  func(text string) []tandem.Token // of a text in logit_bias
}

// body is a body as it becomes one of a completion.
type body struct {
	Options
	in, out map[string]json.RawMessage
	plan    *Plan
}

const (
	mostFields = 64  // of response_fields
	mostFiles  = 256 // of input_extra
	mostParts  = 1 << 20
	mostTop    = 20 // of n_probs

	randomSeed = "4294967295" // llama.cpp's word for a random seed, beside -1
)

// Completion translates a body of /completion. Errors: Invalid and Unsupported, with the field.
func Completion(raw []byte, o Options) (*Plan, error) {
	b, err := read(raw, o)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"input_prefix", "input_suffix", "input_extra", "suffix"} {
		if oai.Asks(b.in[name]) {
			return nil, oai.Unsupported(name, "%s is not supported here: want /infill", name)
		}
		delete(b.out, name)
	}
	if err := b.prompts(); err != nil {
		return nil, err
	}
	if _, said := b.in["parse_special"]; !said { // clients render templates by themselves
		b.out["parse_special"] = json.RawMessage("true")
	}
	return b.end()
}

// Infill translates a body of /infill. What stands in prompt continues input_prefix.
func Infill(raw []byte, o Options) (*Plan, error) {
	b, err := read(raw, o)
	if err != nil {
		return nil, err
	}
	b.plan.Gap = true
	texts := map[string]string{"input_prefix": "", "input_suffix": "", "prompt": ""}
	for name := range texts {
		raw, there := b.in[name]
		delete(b.out, name)
		text := ""
		if there && json.Unmarshal(raw, &text) != nil {
			return nil, oai.Bad(name, "%s is no text: want a string", name)
		}
		if !there && name != "prompt" {
			return nil, oai.Bad(name, "%s is missing: want the text %s", name,
				map[string]string{"input_prefix": "before the gap", "input_suffix": "behind the gap"}[name])
		}
		texts[name] = text
	}
	if err := b.files(); err != nil {
		return nil, err
	}
	delete(b.out, "parse_special") // texts of files are texts
	b.put("prompt", texts["input_prefix"]+texts["prompt"])
	b.put("suffix", texts["input_suffix"])
	return b.end()
}

// files reads input_extra.
func (b *body) files() error {
	raw, there := b.in["input_extra"]
	delete(b.out, "input_extra")
	var all []struct{ Filename, Text *string }
	want := fmt.Sprintf("an array of at most %d objects with filename and text", mostFiles)
	if there {
		if err := oai.UnmarshalPart("input_extra", raw, &all, want); err != nil {
			return err
		}
	}
	if len(all) > mostFiles {
		return oai.Bad("input_extra", "input_extra has %d files: want %s", len(all), want)
	}
	for i, f := range all {
		if f.Text == nil {
			field := fmt.Sprintf("input_extra[%d].text", i)
			return oai.Bad(field, "%s is missing: want the text of a file", field)
		}
		name := "tmp" // as llama.cpp's server calls it
		if f.Filename != nil {
			name = *f.Filename
		}
		b.plan.Files = append(b.plan.Files, tandem.Excerpt{Name: name, Text: *f.Text})
	}
	return nil
}

// put sets a field to a value that JSON has.
func (b *body) put(name string, v any) { b.out[name], _ = conversation.Marshal(v) }

// end returns the plan.
func (b *body) end() (plan *Plan, err error) {
	b.plan.Body, err = conversation.Marshal(b.out)
	return b.plan, err
}

// read reads the fields that both paths share. Those that it does not know go on to the completion as they are.
func read(raw []byte, o Options) (*body, error) {
	b := &body{Options: o, plan: &Plan{}, out: map[string]json.RawMessage{}}
	if err := oai.Unmarshal(raw, &b.in); err != nil {
		return nil, err
	}
	for name, v := range b.in {
		if v = bytes.TrimSpace(v); string(v) == "null" {
			delete(b.in, name)
			continue
		}
		b.in[name], b.out[name] = v, v
	}
	for _, name := range []string{"logprobs", "top_logprobs", "best_of", "stream_options"} { // they are of /v1/completions alone
		if _, there := b.in[name]; there {
			delete(b.out, name)
			o.Ignored(name)
		}
	}
	for _, f := range []func() error{b.own, b.bias, b.fields} {
		if err := f(); err != nil {
			return nil, err
		}
	}
	b.sampling()
	return b, nil
}

// own reads the fields that say what the answer holds.
func (b *body) own() error {
	post := false
	for name, to := range map[string]any{"return_tokens": &b.plan.Tokens, "timings_per_token": &b.plan.Times, "n_probs": &b.plan.Probs,
		"post_sampling_probs": &post} {
		raw, there := b.in[name]
		delete(b.out, name)
		if there && json.Unmarshal(raw, to) != nil {
			want := "true or false"
			if name == "n_probs" {
				want = "an integer"
			}
			return oai.Bad(name, "%s is %.50s: want %s", name, raw, want)
		}
	}
	switch n := b.plan.Probs; {
	case n < 0 || n > mostTop:
		return oai.Bad("n_probs", "n_probs is %d: want 0 to %d", n, mostTop)
	case post && n > 0:
		return oai.Unsupported("post_sampling_probs", "post_sampling_probs is not supported: log-probabilities are the model's own")
	case n > 0:
		b.put("logprobs", n)
	}
	if raw, there := b.in["n_cmpl"]; there {
		delete(b.out, "n_cmpl")
		b.out["n"] = raw
	}
	return nil
}

// fields reads response_fields.
func (b *body) fields() error {
	raw, there := b.in["response_fields"]
	delete(b.out, "response_fields")
	if there && json.Unmarshal(raw, &b.plan.Fields) != nil || len(b.plan.Fields) > mostFields {
		return oai.Bad("response_fields", "response_fields is %.50s: want an array of at most %d names", raw, mostFields)
	}
	if len(b.plan.Fields) == 0 {
		b.plan.Fields = nil
	}
	return nil
}

// sampling turns the values of fields that have another meaning in completions.
func (b *body) sampling() {
	number := func(name string) (n float64, there bool) {
		raw, there := b.in[name]
		return n, there && json.Unmarshal(raw, &n) == nil
	}
	if n, ok := number("n_predict"); ok && n == 0 { // it generates one, as llama.cpp's server does: clients that warm up the cache send it
		b.put("n_predict", 1)
	}
	for _, name := range []string{"temperature", "top_k"} { // below 0: the likeliest token, all tokens
		if n, ok := number(name); ok && n < 0 {
			b.put(name, 0)
		}
	}
	if string(b.in["seed"]) == randomSeed {
		b.put("seed", -1)
	}
}

// bias reads logit_bias: an object as in completions, in which a text may stand for its tokens, or an array of pairs. false forbids a
// token.
func (b *body) bias() error {
	raw, there := b.in["logit_bias"]
	if !there {
		return nil
	}
	type pair struct{ key, add json.RawMessage }
	var pairs []pair
	var object map[string]json.RawMessage
	var list [][]json.RawMessage
	switch {
	case json.Unmarshal(raw, &object) == nil:
		for key, add := range object {
			text, _ := conversation.Marshal(key)
			if strings.Trim(key, "0123456789") == "" && key != "" {
				text = json.RawMessage(key)
			}
			pairs = append(pairs, pair{text, add})
		}
	case json.Unmarshal(raw, &list) == nil:
		for i, p := range list {
			if len(p) != 2 {
				return oai.Bad("logit_bias", "logit_bias[%d] has %d elements: want a token and what to add", i, len(p))
			}
			pairs = append(pairs, pair{p[0], p[1]})
		}
	default:
		return oai.Bad("logit_bias", "logit_bias is %.50s: want an object, or an array of pairs", raw)
	}
	out := map[tandem.Token]float64{}
	for _, p := range pairs {
		var add float64
		if string(bytes.TrimSpace(p.add)) == "false" {
			add = -100
		} else if json.Unmarshal(p.add, &add) != nil {
			return oai.Bad("logit_bias", "logit_bias adds %.50s: want a number, or false", p.add)
		}
		var text string
		var id oai.Int
		switch {
		case json.Unmarshal(p.key, &text) == nil && len(text) <= mostFields:
			for _, t := range b.Encode(text) {
				out[t] = add
			}
		case json.Unmarshal(p.key, &id) == nil:
			out[tandem.Token(id)] = add
		default:
			return oai.Bad("logit_bias", "logit_bias names %.50s: want the id of a token, or a text of at most %d bytes", p.key, mostFields)
		}
	}
	b.put("logit_bias", out)
	return nil
}

// prompts reads prompt: one or several, each a text, tokens, both mixed, or an object with a text.
func (b *body) prompts() error {
	raw, there := b.in["prompt"]
	if !there {
		return nil // the completion's reader says that it is missing
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil { // a text or an object
		text, err := plain("prompt", raw)
		if text != nil {
			b.put("prompt", *text)
		}
		return err
	}
	numbers, texts := 0, 0
	for _, e := range list {
		switch e[0] {
		case '"':
			texts++
		case '[', '{':
		default:
			numbers++
		}
	}
	switch {
	case numbers == len(list) || texts == len(list): // a list of tokens, or of texts
		return nil
	case numbers > 0 && numbers+texts == len(list): // one prompt
		parts, err := mixed("prompt", list)
		b.plan.Mixed = map[int][]Part{0: parts}
		b.put("prompt", "")
		return err
	case numbers > 0:
		return oai.Bad("prompt", "prompt has numbers beside arrays or objects: want one prompt, or an array of prompts")
	}
	return b.several(list)
}

// several reads an array of prompts.
func (b *body) several(list []json.RawMessage) error {
	if len(list) > oai.MostChoices {
		return oai.Bad("prompt", "prompt has more than %d prompts", oai.MostChoices)
	}
	b.plan.Mixed = map[int][]Part{}
	for i, e := range list {
		at := fmt.Sprintf("prompt[%d]", i)
		var inner []json.RawMessage
		if e[0] != '[' {
			text, err := plain(at, e)
			if err != nil {
				return err
			}
			b.plan.Mixed[i] = []Part{{Text: text}}
			continue
		}
		if err := json.Unmarshal(e, &inner); err != nil || len(inner) == 0 {
			return oai.Bad(at, "%s is %.50s: want texts and token ids, at least one", at, e)
		}
		parts, err := mixed(at, inner)
		if err != nil {
			return err
		}
		b.plan.Mixed[i] = parts
	}
	b.put("prompt", make([]string, len(list)))
	return nil
}

// plain reads a prompt that is a text, or an object with one.
func plain(at string, raw json.RawMessage) (*string, error) {
	var text string
	var object struct {
		Text  *string         `json:"prompt_string"`
		Media json.RawMessage `json:"multimodal_data"`
	}
	switch {
	case json.Unmarshal(raw, &text) == nil:
		return &text, nil
	case json.Unmarshal(raw, &object) != nil || object.Text == nil:
		return nil, oai.Bad(at, "%s is %.50s: want a text, token ids, or an object with prompt_string", at, raw)
	case oai.Asks(object.Media):
		return nil, oai.Unsupported(at+".multimodal_data", "%s.multimodal_data is not supported: leave it out", at)
	}
	return object.Text, nil
}

// mixed reads a prompt of texts and token ids.
func mixed(at string, list []json.RawMessage) ([]Part, error) {
	if len(list) > mostParts {
		return nil, oai.Bad(at, "%s has %d parts: want at most %d", at, len(list), mostParts)
	}
	parts := make([]Part, len(list))
	for i, e := range list {
		var id oai.Int
		if e[0] == '"' {
			parts[i].Text = new(string)
			_ = json.Unmarshal(e, parts[i].Text)
		} else if json.Unmarshal(e, &id) != nil {
			field := fmt.Sprintf("%s[%d]", at, i)
			return nil, oai.Bad(field, "%s is %.50s: want a text or a token id", field, e)
		}
		parts[i].Token = tandem.Token(id)
	}
	return parts, nil
}

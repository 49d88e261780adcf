package conversation

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// Variables are further variables of a chat template, as JSON.
type Variables map[string]json.RawMessage

// MostVariables bounds all variables of a request, with their names, in bytes.
const MostVariables = 64 << 10

// reserved are variables that the server sets, and names that other servers refuse in chat_template_kwargs.
var reserved = []string{"messages", "tools", "bos_token", "eos_token", "add_generation_prompt",
	"continue_final_message", "chat_template", "tokenize"}

// Settable refuses the name of a variable that no request can set; field is its path in the request. Errors: Invalid, with the field.
func Settable(field, name string) error {
	if slices.Contains(reserved, name) {
		return wrong(field, "%s cannot be set: the server sets it", field)
	}
	return nil
}

// ParseVariables reads variables from a JSON object. field is its path in the request, "" for none. Errors: Invalid, with the field.
func ParseVariables(field, object string) (Variables, error) {
	value := field
	if value == "" {
		value = "the value"
	}
	if len(object) > MostVariables {
		return nil, wrong(field, "%s has %d bytes: want at most %d", value, len(object), MostVariables)
	}
	switch kind, err := KindOf(object); {
	case err != nil:
		return nil, wrong(field, "%s is not JSON: %w", value, err)
	case kind != "an object":
		return nil, wrong(field, "%s is %s: want a JSON object", value, kind)
	}
	out, d := Variables{}, json.NewDecoder(strings.NewReader(object))
	_, _ = d.Token() // the brace: the whole is valid
	for d.More() {
		token, _ := d.Token()
		name, _ := token.(string)
		full := name
		if field != "" {
			full = field + "." + name
		}
		if _, twice := out[name]; twice {
			return nil, wrong(full, "%.100s is there twice: want it once", full)
		}
		if err := Settable(full, name); err != nil {
			return nil, err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, wrong(full, "%.100s: %w", full, err)
		}
		out[name] = raw
	}
	return out, nil
}

// KindOf names the kind of a JSON value: "an object", "an array" and so on. Errors: what is wrong with a text that is not JSON.
func KindOf(text string) (string, error) {
	var raw json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return "", err
	}
	switch strings.TrimLeft(text, " \t\r\n")[0] {
	case '{':
		return "an object", nil
	case '[':
		return "an array", nil
	case '"':
		return "a string", nil
	case 't', 'f':
		return "a boolean", nil
	case 'n':
		return "null", nil
	}
	return "a number", nil
}

// ranks of a variable: what says it more plainly wins, whatever the order in the request.
const (
	concluded = iota // from a field of another name
	ownField         // a field of its own
	kwarg            // set in the object of variables
)

// Asked collects the variables that one request sets.
type Asked struct {
	of   Variables
	rank map[string]int
}

// Variables returns what was set; nil for nothing.
func (a *Asked) Variables() Variables { return a.of }

// Set sets a variable by its name.
func (a *Asked) Set(name string, raw json.RawMessage) { a.set(name, raw, kwarg) }

// Think sets whether the model thinks, for a template that reads enable_thinking.
func (a *Asked) Think(on bool) { a.set("enable_thinking", []byte(strconv.FormatBool(on)), ownField) }

// Effort sets how long the model should think. "none" is Think(false) for a template that reads only enable_thinking. It reports whether
// the effort means anything to the template.
func (a *Asked) Effort(effort string, reads func(variable string) bool) bool {
	switch {
	case reads("reasoning_effort"):
		raw, _ := json.Marshal(effort)
		a.set("reasoning_effort", raw, ownField)
	case effort == "none":
		a.set("enable_thinking", []byte("false"), concluded)
	default:
		return false
	}
	return true
}

func (a *Asked) set(name string, raw json.RawMessage, rank int) {
	if a.of == nil {
		a.of, a.rank = Variables{}, map[string]int{}
	}
	if _, there := a.of[name]; !there || rank >= a.rank[name] {
		a.of[name], a.rank[name] = slices.Clone(raw), rank
	}
}

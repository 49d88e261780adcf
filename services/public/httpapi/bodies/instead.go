package bodies

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// Histories hold what a model that reads texts cannot be shown: pictures in results of tools, what a provider's own tools did. No client
// can take that back, so it never ends a session: a text stands in its place, and its kind is named as ignored.

// instead returns the text in place of a part of a history: its kind and the texts that it holds, or that it was omitted.
func instead(kind string, holds ...string) string {
	if holds = slices.DeleteFunc(holds, func(s string) bool { return strings.TrimSpace(s) == "" }); len(holds) > 0 {
		return "[" + kind + "]\n" + strings.Join(holds, "\n")
	}
	return "[" + kind + " omitted: this model reads text alone]"
}

// held are the names under which parts of histories hold texts, in Anthropic's and OpenAI's APIs. Arguments are shown as they are.
var held = map[string]bool{"text": true, "title": true, "url": true, "content": true, "source": true, "stdout": true, "stderr": true,
	"output": true, "outputs": true, "logs": true, "code": true, "query": true, "queries": true, "name": true, "results": true,
	"filename": true, "error": true, "error_code": true, "message": true, "refusal": true, "input": false, "arguments": false,
	"action": false, "operation": false}

// heldIn returns the texts that a JSON value holds, in their order; "" for none. raw nests no deeper than encoding/json takes.
func heldIn(raw json.RawMessage) string {
	var out []string
	h := holder{json.NewDecoder(bytes.NewReader(raw)), &out}
	h.value()
	return strings.Join(out, "\n")
}

type holder struct {
	*json.Decoder
	out *[]string
}

// value adds the texts of the next value. A value that is no JSON ends it.
func (h holder) value() {
	token, err := h.Token()
	if text, ok := token.(string); ok && text != "" && !strings.HasPrefix(text, "data:") {
		*h.out = append(*h.out, text)
	}
	open, ok := token.(json.Delim)
	if err != nil || !ok {
		return
	}
	kind, data := "", json.RawMessage(nil)
	for h.More() {
		if open == '[' {
			h.value()
			continue
		}
		key, err := h.Token()
		if err != nil {
			return
		}
		name, _ := key.(string)
		if deep, known := held[name]; deep {
			h.value()
			continue
		} else if raw := json.RawMessage(nil); h.Decode(&raw) != nil {
			return
		} else if known && asks(raw) {
			*h.out = append(*h.out, bare(raw))
		} else if name == "type" {
			_ = json.Unmarshal(raw, &kind)
		} else if name == "data" {
			data = raw
		}
	}
	if _, err := h.Token(); err == nil && kind == "text" && data != nil { // a document's; that of others is no text
		*h.out = append(*h.out, bare(data))
	}
}

// bare returns a text without quotes, and any other value as it is written.
func bare(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

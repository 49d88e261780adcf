package bodies

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// known reports whether a field of either kind of bodies is in a table.
func known(name string) bool {
	return lineOf(chats, name, false) != nil || lineOf(completions, name, false) != nil
}

// TestAdvisoryFields: whatever the value of a field that is in no table, the body is taken and the field is named.
func TestAdvisoryFields(t *testing.T) {
	names := append(namesOf(strict), "foo", "cache_prompt", "keep_alive", "samplers", "", "ä", "guided_decoding_backend",
		"speculative.n_max")
	rapid.Check(t, func(r *rapid.T) {
		name := rapid.OneOf(rapid.SampledFrom(names), rapid.StringN(0, 20, 100)).Draw(r, "name")
		if known(name) {
			return
		}
		advised(r, name, value(r, 4))
	})
}

// value draws any JSON value.
func value(r *rapid.T, depth int) any {
	switch kind := rapid.IntRange(0, 6).Draw(r, "kind"); {
	case kind == 0:
		return nil
	case kind == 1:
		return rapid.Bool().Draw(r, "bool")
	case kind == 2:
		return rapid.Float64Range(-1e300, 1e300).Draw(r, "number")
	case kind == 3:
		return rapid.Int64().Draw(r, "integer")
	case kind == 4 || depth == 0:
		return rapid.String().Draw(r, "text")
	case kind == 5:
		list := []any{}
		for range rapid.IntRange(0, 4).Draw(r, "elements") {
			list = append(list, value(r, depth-1))
		}
		return list
	}
	fields := map[string]any{}
	for range rapid.IntRange(0, 4).Draw(r, "fields") {
		fields[rapid.String().Draw(r, "field")] = value(r, depth-1)
	}
	return fields
}

// advised sends a field beside a prompt, beside messages, in a message, and in a part.
func advised(t interface{ Fatalf(string, ...any) }, name string, v any) {
	key, err := json.Marshal(name)
	if err != nil {
		t.Fatalf("%v", err)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("%v", err)
	}
	field := fmt.Sprintf("%s:%s", key, raw)
	for _, body := range []string{
		`{"prompt":"a",` + field + `}`,
		`{` + field + `,"messages":[{"role":"user","content":"a"}]}`,
		`{"messages":[{"role":"user",` + field + `,"content":"a"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a",` + field + `}]}]}`,
	} {
		if strings.Contains(body, `"role":"user",`+field) && inMessages(name) || strings.Contains(body, `"text":"a",`+field) && inParts(name) {
			continue
		}
		var ignored []string
		l := testLimits
		l.Ignored = func(name string) { ignored = append(ignored, name) }
		read := Chat
		if strings.HasPrefix(body, `{"prompt"`) {
			read = Completion
		}
		if _, err := read(strings.NewReader(body), defaults, l); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if v != nil && (len(ignored) != 1 || !strings.HasSuffix(ignored[0], name)) {
			t.Fatalf("%s: ignored %q", body, ignored)
		}
	}
}

func inMessages(name string) bool {
	switch name {
	case "role", "content", "name", "reasoning", "reasoning_content", "thinking", "refusal", "tool_calls", "tool_call_id":
		return true
	}
	for _, known := range unheard {
		if name == known {
			return true
		}
	}
	return false
}

func inParts(name string) bool { return name == "type" || name == "text" || name == "refusal" }

// namesOf returns the names in a part of the table.
func namesOf(part []field) (names []string) {
	for _, f := range part {
		names = append(names, strings.Fields(f.names)...)
	}
	return names
}

// FuzzAdvisoryField is TestAdvisoryFields for any name and any JSON.
func FuzzAdvisoryField(f *testing.F) {
	for _, name := range namesOf(strict) {
		f.Add(name, `{"a":[1,true,null,"x"]}`)
	}
	f.Add("cache_prompt", `1e999`)
	f.Fuzz(func(t *testing.T, name, raw string) {
		name = strings.ToValidUTF8(name, "")
		var v any
		if known(name) || len(name) > maxName || len(raw) > 1<<16 || json.Unmarshal([]byte(raw), &v) != nil {
			return
		}
		if again, err := json.Marshal(v); err != nil || strings.Count(string(again), "[")+strings.Count(string(again), "{") > maxDepth-4 {
			return
		}
		advised(t, name, v)
	})
}

package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/text/grammar"
)

// TestConstrainedBodies: every dialect's way to ask for a form of the answer becomes the same value. A chat's prompt asks for it too.
func TestConstrainedBodies(t *testing.T) {
	s, last := heardBy(t, nil)
	const (
		chat  = `{"messages":[{"role":"user","content":"a"}],`
		shape = `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`
	)
	schema, object := grammar.Spec{Schema: json.RawMessage(shape)}, grammar.Spec{Object: true}
	for _, c := range []struct {
		path, body string
		want       grammar.Spec
	}{
		{"/v1/chat/completions", chat + `"response_format":{"type":"json_object"}}`, object},
		{"/v1/chat/completions", chat + `"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":` +
			shape + `}}}`,
			schema},
		{"/v1/chat/completions", chat + `"response_format":{"schema":` + shape + `,"type":"json_object"}}`, schema},
		{"/v1/chat/completions", chat + `"response_format":{"type":"json_schema","json_schema":{"schema":{}}}}`,
			grammar.Spec{Schema: json.RawMessage("{}")}},
		{"/v1/chat/completions", chat + `"guided_json":` + shape + `}`, schema},
		{"/v1/chat/completions", chat + `"guided_regex":"a+"}`, grammar.Spec{Regex: "a+"}},
		{"/v1/chat/completions", chat + `"guided_choice":["a","b"]}`, grammar.Spec{Choices: []string{"a", "b"}}},
		{"/v1/chat/completions", chat + `"guided_json_object":true}`, object},
		{"/v1/chat/completions", chat + `"structured_outputs":{"json":` + shape + `}}`, schema},
		{"/v1/chat/completions", chat + `"structured_outputs":{"regex":"a+","disable_any_whitespace":true}}`, grammar.Spec{Regex: "a+"}},
		{"/v1/chat/completions", chat + `"structured_outputs":{"choice":["a"]}}`, grammar.Spec{Choices: []string{"a"}}},
		{"/v1/chat/completions", chat + `"json_schema":` + quoted(shape) + `}`, schema}, // SGLang's
		{"/v1/chat/completions", chat + `"regex":"a+"}`, grammar.Spec{Regex: "a+"}},
		{"/v1/completions", `{"prompt":"a","response_format":{"type":"json_object"}}`, object},
		{"/v1/responses", `{"input":"a","text":{"format":{"type":"json_schema","name":"n","schema":` + shape + `}}}`, schema},
		{"/v1/responses", `{"input":"a","text":{"format":{"type":"json_object"}}}`, object},
		{"/v1/messages",
			`{"max_tokens":5,"messages":[{"role":"user","content":"a"}],"output_config":{"format":{"type":"json_schema","schema":` +
				shape + `}}}`, schema},
		{"/v1/messages", `{"max_tokens":5,"messages":[{"role":"user","content":"a"}],"output_format":{"type":"json_schema","schema":` +
			shape + `}}`,
			schema},
		{"/api/chat", `{"stream":false,"messages":[{"role":"user","content":"a"}],"format":"json"}`, object},
		{"/api/chat", `{"stream":false,"messages":[{"role":"user","content":"a"}],"format":` + shape + `}`, schema},
		{"/api/generate", `{"stream":false,"prompt":"a","format":` + shape + `}`, schema},
		{"/api/generate", `{"stream":false,"prompt":"a","raw":true,"format":"json"}`, object},
		{"/completion", `{"prompt":"a","json_schema":` + shape + `}`, schema},
		{"/infill", `{"input_prefix":"a","input_suffix":"b","json_schema":` + shape + `}`, schema},
	} {
		*last = tandem.Request{}
		answer, all := s.ask(t, "POST", c.path, c.body)
		want, _ := json.Marshal(c.want)
		if limits := last.Sampling.Constraint; answer.StatusCode != http.StatusOK || limits == nil || limits.Spec != string(want) {
			t.Errorf("%s %s: %s\n got %+v\nwant %s: %s", c.path, c.body, answer.Status, limits, want, all)
		}
	}
	for _, body := range []string{`"response_format":{"type":"text"}}`, `"guided_json":null}`, `"guided_json":""}`, `"guided_regex":""}`,
		`"guided_choice":[]}`, `"json_schema":false}`, `"structured_outputs":false}`, `"structured_outputs":{}}`,
		`"guided_json_object":false}`} {
		if answer, all := s.ask(t, "POST", "/v1/chat/completions", chat+body); answer.StatusCode != 200 || last.Sampling.Constraint != nil {
			t.Errorf("%s: %s, %+v: %s", body, answer.Status, last.Sampling.Constraint, all)
		}
	}
}

// quoted returns a text as JSON.
func quoted(text string) string {
	raw, _ := json.Marshal(text)
	return string(raw)
}

// TestConstraintsAreRefusedByName: what cannot be obeyed is a 400 before the request is admitted. It names the field, and the place in it.
func TestConstraintsAreRefusedByName(t *testing.T) {
	s, last := heardBy(t, nil)
	const chat = `{"messages":[{"role":"user","content":"a"}],`
	for _, c := range []struct{ path, body, param, says string }{
		{"/v1/chat/completions", chat + `"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"strin"}}}}`,
			"response_format.json_schema.schema", "type"},
		{"/v1/chat/completions", chat + `"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object","properties":` +
			`{"a":{"type":"string","pattern":"("}}}}}}`, "response_format.json_schema.schema", "/properties/a"},
		{"/v1/chat/completions", chat + `"response_format":{"type":"json_schema"}}`, "response_format.json_schema.schema", "missing"},
		{"/v1/chat/completions", chat + `"response_format":{"type":"grammar"}}`, "response_format", "json_schema"},
		{"/v1/chat/completions", chat + `"response_format":{"type":"json_object"},"guided_regex":"a"}`, "guided_regex", "response_format"},
		{"/v1/chat/completions", chat + `"guided_regex":"("}`, "guided_regex", "regex"},
		{"/v1/chat/completions", chat + `"guided_json":"{"}`, "guided_json", "not JSON"},
		{"/v1/chat/completions", chat + `"guided_choice":[1]}`, "guided_choice[0]", "string"},
		{"/v1/chat/completions", chat + `"guided_grammar":"root ::= \"a\""}`, "guided_grammar", "not supported"},
		{"/v1/chat/completions", chat + `"structured_outputs":{"grammar":"root ::= \"a\""}}`, "structured_outputs.grammar",
			"not supported"},
		{"/v1/chat/completions", chat + `"response_format":{"type":"json_object"},"ignore_eos":true}`, "ignore_eos", "constraint"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"{"}],` +
			`"response_format":{"type":"json_object"}}`, "response_format", "the assistant's"},
		{"/v1/responses", `{"input":"a","text":{"format":{"type":"json_schema","name":"n","schema":{"type":7}}}}`, "text.format.schema",
			"type"},
	} {
		answer, all := s.ask(t, "POST", c.path, c.body)
		if p := refusal(t, answer, all); answer.StatusCode != http.StatusBadRequest || p.Param != c.param || !strings.Contains(p.Message,
			c.says) {
			t.Errorf("%s: %s: %+v", c.body, answer.Status, p)
		}
	}
	for path, body := range map[string]string{"/v1/messages": `{"max_tokens":5,"messages":[{"role":"user","content":"a"}],"output_config":` +
		`{"format":{"type":"json_schema","schema":{"type":7}}}}`,
		"/api/chat": `{"messages":[{"role":"user","content":"a"}],"format":"yaml"}`} {
		if answer, all := s.ask(t, "POST", path, body); answer.StatusCode != http.StatusBadRequest || !strings.Contains(all, "format") {
			t.Errorf("%s: %s: %s", body, answer.Status, all)
		}
	}
	if last.MaxTokens != 0 {
		t.Errorf("one was admitted: %+v", last)
	}
}

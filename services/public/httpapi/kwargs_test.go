package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestTemplateVariables: variables reach the template, which here reads enable_thinking and style; others are ignored and named.
func TestTemplateVariables(t *testing.T) {
	s := serve(t, writes("a", 1, tandem.FinishStop), large)
	const messages = `"messages":[{"role":"user","content":"a"}]`
	for _, c := range []struct{ body, want, ignored string }{
		{`{` + messages + `}`, "", ""},
		{`{` + messages + `,"chat_template_kwargs":{"enable_thinking":false}}`, "enable_thinking=false\n", ""},
		{`{"chat_template_kwargs":{"style":{"b":1, "a":[1e20]}},` + messages + `}`, `style={"b":1, "a":[1e20]}` + "\n", ""},
		{`{` + messages + `,"chat_template_kwargs":{"other":1,"style":null}}`, "style=null\n", "chat_template_kwargs.other"},
		{`{` + messages + `,"chat_template_kwargs":null}`, "", ""},
		{`{` + messages + `,"enable_thinking":true}`, "enable_thinking=true\n", ""},
		{`{` + messages + `,"chat_template_kwargs":{"enable_thinking":false},"enable_thinking":true}`, "enable_thinking=false\n", ""},
		{`{` + messages + `,"enable_thinking":true,"chat_template_kwargs":{"enable_thinking":false}}`, "enable_thinking=false\n", ""},
		{`{` + messages + `,"reasoning_effort":"none"}`, "enable_thinking=false\n", ""},
		{`{` + messages + `,"enable_thinking":true,"reasoning_effort":"none"}`, "enable_thinking=true\n", ""},
		{`{` + messages + `,"reasoning_effort":"high"}`, "", "reasoning_effort"},
		{`{` + messages + `,"tools":[{"type":"function","function":{"name":"f"}}],"enable_thinking":false}`, "enable_thinking=false\ntools=" +
			`[{"type":"function","function":{"name":"f"}}]` + "\n", ""},
		{`{` + messages + `,"tools":[]}`, "", ""},
	} {
		answer, got := s.ask(t, "POST", "/apply-template", c.body)
		var out struct{ Prompt string }
		if err := json.Unmarshal([]byte(got), &out); err != nil || answer.StatusCode != http.StatusOK || out.Prompt != c.want+"user: a\n" {
			t.Errorf("%s: %d %s, want prompt %q", c.body, answer.StatusCode, got, c.want)
		}
		if ignored := answer.Header.Get("X-Tandem-Ignored"); ignored != c.ignored {
			t.Errorf("%s: ignored %q, want %q", c.body, ignored, c.ignored)
		}
		if answer, got := s.ask(t, "POST", "/v1/chat/completions", c.body); answer.StatusCode != http.StatusOK {
			t.Errorf("%s: a chat gives %d %s", c.body, answer.StatusCode, got)
		}
	}
	for body, want := range map[string]string{
		`{` + messages + `,"chat_template_kwargs":{"messages":[]}}`:                                "chat_template_kwargs.messages cannot be set",
		`{` + messages + `,"chat_template_kwargs":{"add_generation_prompt":1}}`:                    "add_generation_prompt cannot be set",
		`{` + messages + `,"chat_template_kwargs":[1]}`:                                            "want an object",
		`{` + messages + `,"chat_template_kwargs":{"style":1,"style":2}}`:                          "there twice",
		`{` + messages + `,"enable_thinking":"no"}`:                                                "want true or false",
		`{` + messages + `,"reasoning_effort":5}`:                                                  "want a string",
		`{` + messages + `,"chat_template_kwargs":{"style":"` + strings.Repeat("x", 1<<16) + `"}}`: "more than 65536 bytes",
	} {
		for _, path := range []string{"/apply-template", "/v1/chat/completions"} {
			answer, got := s.ask(t, "POST", path, body)
			if answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(got), want) {
				t.Errorf("%s %.100s: %d %s, want 400 with %q", path, body, answer.StatusCode, got, want)
			}
		}
	}
}

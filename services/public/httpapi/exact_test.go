package httpapi

import (
	"net/http"
	"strings"
	"testing"
)

// TestFieldsOnce: every API refuses what two readers of a body may read in two ways: a field that is there twice, one that is nearly a
// field's name, half a character.
func TestFieldsOnce(t *testing.T) {
	s, _ := embedding(t, nil)
	said := `{"role":"user","content":"a"}`
	for _, tc := range []struct{ path, body, want string }{
		{"/v1/messages", `{"max_tokens":1,"messages":[` + said + `],"messages":[]}`, "messages is there twice"},
		{"/v1/messages", `{"max_tokens":1,"messages":[` + said + `],"MESSAGES":[]}`, "want messages, in small letters"},
		{"/v1/messages", `{"max_tokens":1,"meſſages":[` + said + `]}`, "want messages, in small letters"},
		{"/v1/messages", `{"max_tokens":1,"messages":[{"role":"user","Content":"a"}]}`, "messages[0].Content: want content"},
		{"/v1/messages", `{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"a","t\u0065xt":"b"}]}]}`,
			"messages[0].content[0].text is there twice"},
		{"/v1/messages", `{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","TEXT":"a"}]}]}`,
			"messages[0].content[0].TEXT: want text"},
		{"/v1/messages", `{"max_tokens":1,"messages":[{"role":"user","content":"\ud800"}]}`, "half a character"},
		{"/v1/messages/count_tokens", `{"messages":[` + said + `],"System":"x"}`, "System: want system"},
		{"/v1/responses", `{"input":"a","input":"b"}`, "input is there twice"},
		{"/v1/responses", `{"INPUT":"a"}`, "INPUT: want input"},
		{"/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_text","Text":"a"}]}]}`, "input[0].content[0].Text: want text"},
		{"/v1/responses", `{"input":"a","tools":[{"type":"function","NAME":"f"}]}`, "tools[0].NAME: want name"},
		{"/v1/responses", `{"input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","NAME":"f"}}`,
			"tool_choice.NAME: want name"},
		{"/v1/responses", `{"input":"\udc00"}`, "half a character"},
		{"/api/chat", `{"messages":[` + said + `],"Messages":[]}`, "Messages: want messages"},
		{"/api/chat", `{"messages":[{"role":"user","content":"a","content":"b"}]}`, "messages[0].content is there twice"},
		{"/api/chat", `{"messages":[` + said + `],"options":{"seed":1,"seed":2}}`, "options.seed is there twice"},
		{"/api/generate", `{"prompt":"a","PROMPT":"b"}`, "PROMPT: want prompt"},
		{"/api/embed", `{"input":"a","input":"b"}`, "input is there twice"},
		{"/completion", `{"prompt":"a","prompt":"b"}`, "prompt is there twice"},
		{"/completion", `{"prompt":["a\ud800"]}`, "half a character"},
		{"/infill", `{"input_prefix":"a","input_suffix":"b","input_extra":[{"Text":"x"}]}`, "input_extra[0].Text: want text"},
		{"/v1/chat/completions", `{"messages":[` + said + `],"tools":[{"type":"function","function":{"name":"f","Name":"g"}}]}`,
			"tools[0].function.Name: want name"},
		{"/v1/chat/completions", `{"messages":[` + said + `],"tools":[{"function":{"name":"f","parameters":{"a":1,"a":2}}}]}`,
			"tools[0].function.parameters.a is there twice"},
	} {
		answer, all := s.ask(t, "POST", tc.path, tc.body)
		if answer.StatusCode != http.StatusBadRequest || !strings.Contains(all, tc.want) {
			t.Errorf("%s %s: %s: %s, want %s", tc.path, tc.body, answer.Status, all, tc.want)
		}
	}
}

// TestTooMuchInOneBody: every API says what a body holds too much of.
func TestTooMuchInOneBody(t *testing.T) {
	s, _ := embedding(t, nil)
	full := func(before, each, after string) string {
		return before + strings.Repeat(each+",", 70_000) + each + after
	}
	said := `"messages":[{"role":"user","content":"a"}]`
	const nested = "the body has more than 65536 objects and arrays in arrays: "
	for _, tc := range []struct{ path, body, want string }{
		{"/v1/messages", full(`{"max_tokens":1,"messages":[`, `{}`, `]}`), nested + "messages[65536] is one too many"},
		{"/v1/messages", full(`{"max_tokens":1,"messages":[{"role":"user","content":[`, `{}`, `]}]}`),
			nested + "messages[0].content[65535] is one too many"},
		{"/v1/responses", full(`{"input":[`, `[]`, `]}`), nested + "input[65536]"},
		{"/v1/chat/completions", full(`{`+said+`,"tools":[`, `{}`, `]}`), nested + "tools[65535]"},
		{"/v1/chat/completions", full(`{`+said+`,"metadata":{"a":[`, `{}`, `]}}`), nested + "metadata.a[65535]"},
		{"/api/chat", full(`{`+said+`,"format":[`, `{}`, `]}`), nested + "format[65535]"},
		{"/completion", full(`{"logit_bias":[`, `[]`, `]}`), nested + "logit_bias[65536]"},
		{"/completion", `{"prompt":[` + strings.Repeat("1,", 1<<20) + `1]}`, "more than 1048576 values: prompt[1048575]"},
		{"/v1/chat/completions", full(`{"messages":[`, `{"role":"user","content":"a"}`, `]}`), "messages has more than 16384 elements"},
		{"/v1/embeddings", full(`{"input":[`, `[1]`, `]}`), "input has more than 2048 texts"},
	} {
		answer, all := s.ask(t, "POST", tc.path, tc.body)
		if answer.StatusCode != http.StatusBadRequest || !strings.Contains(all, tc.want) {
			t.Errorf("%s: %s: %.300s, want %s", tc.path, answer.Status, all, tc.want)
		}
	}
}

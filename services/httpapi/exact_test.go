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

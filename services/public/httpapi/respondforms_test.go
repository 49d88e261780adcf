package httpapi

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestResponsesForms: what clients send becomes a conversation; what this server cannot do is refused by name.
func TestResponsesForms(t *testing.T) {
	var last tandem.Request
	s := serve(t, written(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		last = r
		return writes("ok", 1, tandem.FinishStop)(ctx, r, sink)
	}), large)
	for body, want := range map[string]string{
		`{"input":"","max_output_tokens":1}`: "<s>user: \n",
		`{"instructions":"i","input":[{"role":"developer","content":"d"},{"type":"message","role":"user","content":[{"type":"input_text","text":"a"}]},
			{"role":"system","content":"s"}]}`: "<s>system: i\n\nd\nuser: a\n\ns\n",
		`{"input":[{"role":"user","content":"a"},{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"},{"type":"message","role":"assistant",
			"content":[{"type":"output_text","text":"b","annotations":[]}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}","status":"completed"},
			{"type":"function_call_output","call_id":"1","output":"r"},{"type":"custom_tool_call","call_id":"2","name":"p","input":"x"},
			{"type":"custom_tool_call_output","call_id":"2","output":[{"type":"input_text","text":"q"}]},{"type":"web_search_call"}]}`: "<s>user: a\nassistant: b\ntool: r\nassistant: \ntool: q\n",
		`{"input":"a","text":{"format":{"type":"text"},"verbosity":"low"},"truncation":"auto","background":false,"previous_response_id":null}`: "<s>user: a\n",
		`{"input":"a","text":{"format":{"type":"json_object"}}}`:                                                                               "<s>system: Answer with one JSON object, and with nothing else.\nuser: a\n",
	} {
		answer, all := s.ask(t, "POST", "/v1/responses", body)
		if got := (alphabet{}).DecodeWritten(last.Tokens); answer.StatusCode != 200 || got != want {
			t.Errorf("%s\nis read as %q\nwant %q: %s", body, got, want, all)
		}
	}
	for body, want := range map[string]string{
		`{"input":"a","previous_response_id":"resp_1"}`:                  "previous_response_id",
		`{"input":"a","background":true}`:                                "background",
		`{"input":[{"type":"item_reference","id":"x"}]}`:                 "input[0].type",
		`{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`: "input[0].content[0].type",
		`{"input":[{"role":"x","content":"a"}]}`:                         "input[0].role",
		`{"input":5}`:                                                    "input",
		`{"input":"a","max_output_tokens":0}`:                            "max_output_tokens",
		`{"input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"g"}}`: "tool_choice",
	} {
		if p := s.refused(t, "POST", "/v1/responses", body); p.status != 400 || p.Param != want {
			t.Errorf("%s: %+v, want %s", body, p, want)
		}
	}
	long := `{"input":"` + strings.Repeat("a", 1<<13) + `"}`
	if p := s.refused(t, "POST", "/v1/responses", long); p.status != 400 || p.Code != "context_length_exceeded" {
		t.Errorf("too long: %+v", p)
	}
}

// TestCustomTool: a tool that takes a text is called with it.
func TestCustomTool(t *testing.T) {
	const call = "<tool_call>\n{\"name\": \"p\", \"arguments\": {\"input\": \"*** Begin\\n\"}}\n</tool_call>"
	s := serve(t, writes(call, 4, tandem.FinishStop), large)
	const body = `{"input":"a","tools":[{"type":"custom","name":"p","description":"d","format":{"type":"text"}}]%s}`
	if _, all := s.ask(t, "POST", "/v1/responses", fmt.Sprintf(body, "")); !strings.Contains(all, `"type":"custom_tool_call"`) ||
		!strings.Contains(all, `"input":"*** Begin\n"`) {
		t.Errorf("whole: %s", all)
	}
	if _, all := s.ask(t, "POST", "/v1/responses", fmt.Sprintf(body, `,"stream":true`)); !strings.Contains(all,
		`"type":"response.custom_tool_call_input.delta"`) || !strings.Contains(all, `"delta":"*** Begin\n"`) {
		t.Errorf("streamed: %s", all)
	}
}

// TestCustomGrammar: the grammar of a custom tool's text reaches the model in the tool's description.
func TestCustomGrammar(t *testing.T) {
	s, prompt := recorder(t)
	for format, told := range map[string]string{
		`{"type":"grammar","syntax":"lark","definition":"start: \"x\""}`: `d\n\nThe argument input is a text that follows this grammar (lark):\nstart: \"x\"`,
		`{"type":"text"}`: `"description":"d"`, `null`: `"description":"d"`, `"odd"`: `"description":"d"`,
	} {
		body := `{"input":"a","tools":[{"type":"custom","name":"p","description":"d","format":` + format + `}]}`
		if answer, all := s.ask(t, "POST", "/v1/responses", body); answer.StatusCode != 200 || !strings.Contains(prompt(), told) {
			t.Errorf("%s: %s %s, read as %s, want %s", body, answer.Status, all, prompt(), told)
		}
	}
}

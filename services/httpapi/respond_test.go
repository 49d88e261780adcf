package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"

	"github.com/tandem-llm/tandem"
)

const asksCodex = `{"model":"m","instructions":"Be brief.","input":[{"type":"message","role":"developer","content":[{"type":"input_text","text":"d"}]},` +
	`{"role":"user","content":"hi"}],"tools":[{"type":"function","name":"f","strict":false,"parameters":{"type":"object"}},` +
	`{"type":"namespace","name":"n","tools":[{"type":"function","name":"g","parameters":{}}]},{"type":"web_search"}],` +
	`"store":false,"include":["reasoning.encrypted_content"],"prompt_cache_key":"k","reasoning":{"summary":"auto"},"client_metadata":{}%s}`

// items writes the items of an answer as one line.
func items(all []responses.ResponseOutputItemUnion) string {
	var out []string
	for _, it := range all {
		text := ""
		for _, c := range it.Content {
			text += c.Text
		}
		var raw struct{ Namespace string }
		_ = json.Unmarshal([]byte(it.RawJSON()), &raw)
		out = append(out, fmt.Sprintf("%s %q %s.%s%s", it.Type, text, raw.Namespace, it.Name, it.Arguments.OfString))
	}
	return strings.Join(out, "; ")
}

const wantItems = `reasoning "Hm." .; message "I look." .; function_call "" .f{"a": "x\ny"}; function_call "" n.g{}`

// TestResponses: items, streamed in pieces of every size and whole, in the order that clients need.
func TestResponses(t *testing.T) {
	for n := 1; n < len(twoCalls); n += 3 {
		s := serve(t, writes(twoCalls, n, tandem.FinishStop), large)
		answer, all := s.ask(t, "POST", "/v1/responses", fmt.Sprintf(asksCodex, `,"stream":true`))
		if ignored := answer.Header.Get("X-Tandem-Ignored"); !strings.Contains(ignored, "web_search") {
			t.Errorf("ignored %q", ignored)
		}
		var last responses.Response
		var order []string
		done := map[int64]string{}
		for i, part := range strings.Split(strings.TrimSpace(all), "\n\n") {
			head, data, _ := strings.Cut(part, "\n")
			var e responses.ResponseStreamEventUnion
			if err := json.Unmarshal([]byte(strings.TrimPrefix(data, "data: ")), &e); err != nil || head != "event: "+e.Type ||
				e.SequenceNumber != int64(i) {
				t.Fatalf("event %d: %s: %v", i, part, err)
			}
			switch e.Type {
			case "response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta":
				done[e.OutputIndex] += e.Delta
				if len(order) > 0 && order[len(order)-1] == e.Type {
					continue
				}
			case "response.completed":
				last = e.Response
			}
			order = append(order, e.Type)
		}
		if got := items(last.Output); got != wantItems || last.Usage.OutputTokens == 0 || last.Status != "completed" {
			t.Fatalf("streamed: %s, want %s", got, wantItems)
		}
		if got := fmt.Sprint(done); got != `map[0:Hm. 1:I look. 2:{"a": "x\ny"} 3:{}]` {
			t.Errorf("deltas: %s", got)
		}
		if got := strings.ReplaceAll(strings.Join(order, " "), "response.", ""); got != "created in_progress "+
			"output_item.added content_part.added reasoning_text.delta reasoning_text.done content_part.done output_item.done "+
			"output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done "+
			"output_item.added function_call_arguments.delta function_call_arguments.done output_item.done "+
			"output_item.added function_call_arguments.delta function_call_arguments.done output_item.done completed" {
			t.Errorf("order: %s", got)
		}
	}
	s := serve(t, writes(twoCalls, 5, tandem.FinishStop), large)
	c := official(s)
	whole, err := c.Responses.New(t.Context(), responses.ResponseNewParams{Model: "m", Store: param.NewOpt(false),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hi")},
		Tools: []responses.ToolUnionParam{responses.ToolParamOfFunction("f", map[string]any{"type": "object"}, false)}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := items(whole.Output), strings.ReplaceAll(wantItems, "n.g", ".g"); got != want || whole.Usage.InputTokens == 0 {
		t.Errorf("whole: %s, want %s", got, want)
	}
}

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

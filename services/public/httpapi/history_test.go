package httpapi

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// recorder is a server that keeps the latest prompt.
func recorder(t *testing.T) (s *site, prompt func() string) {
	var last tandem.Request
	s = serve(t, written(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		last = r
		return writes("ok", 1, tandem.FinishStop)(ctx, r, sink)
	}), large)
	return s, func() string { return strings.TrimPrefix((alphabet{}).DecodeWritten(last.Tokens), "<s>") }
}

// TestHistoryNeverEnds: what of results and earlier answers is no text has a text in its place, and is named; what the user asks about is
// refused, since the client can leave it out.
func TestHistoryNeverEnds(t *testing.T) {
	const (
		picture = `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aGk="}}`
		claude  = `{"max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[%s]},{"role":"user","content":"n"}]}`
		result  = `{"max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f",` +
			`"input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[%s]}]}]}`
		input  = `{"max_output_tokens":5,"input":[{"role":"user","content":"q"},%s,{"role":"user","content":"n"}]}`
		output = `{"max_output_tokens":5,"input":[{"role":"user","content":"q"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},` +
			`{"type":"function_call_output","call_id":"c","output":[%s]}]}`
		chat = `{"max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function",` +
			`"function":{"name":"f","arguments":"{}"}}]},%s]}`
		ollama = `{"stream":false,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f",` +
			`"arguments":{}}}]},%s]}`
		none = " omitted: this model reads text alone]"
	)
	s, prompt := recorder(t)
	for _, c := range []struct{ path, form, what, reads, ignored string }{
		{"/v1/messages", result, `{"type":"text","text":"see"},` + picture, "tool: see\n[image" + none, "messages[].content[].image"},
		{"/v1/messages", result, picture, "tool: [image" + none, "messages[].content[].image"},
		{"/v1/messages", result, `{"type":"search_result","source":"http://x.invalid","title":"t","content":[{"type":"text","text":"found"}],` +
			`"citations":{"enabled":true}}`, "tool: [search_result]\nt\nhttp://x.invalid\nfound", "messages[].content[].search_result"},
		{"/v1/messages", result, `{"type":"document","title":"t","source":{"type":"content","content":[{"type":"text","text":"a"},` + picture +
			`]}}`, "tool: [document]\nt\na", "messages[].content[].document"},
		{"/v1/messages", result, `{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"aGk="}}`,
			"tool: [document" + none, "messages[].content[].document"},
		{"/v1/messages", result, `{"type":"document","source":{"type":"text","media_type":"text/plain","data":"d"}}`, "tool: d", ""},
		{"/v1/messages", result, `{"type":"something_new","content":{"type":"x","content":"told","data":"aGk="}}`,
			"tool: [something_new]\ntold", "messages[].content[].something_new"},
		{"/v1/messages", claude, `{"type":"server_tool_use","id":"s","name":"web_search","input":{"query":"w"}},{"type":"web_search_tool_result",` +
			`"tool_use_id":"s","content":[{"type":"web_search_result","url":"http://u","title":"T","encrypted_content":"x","page_age":null}]},` +
			`{"type":"text","text":"so","citations":[{"type":"web_search_result_location"}]}`,
			"assistant: [server_tool_use]\nweb_search\n{\"query\":\"w\"}\n[web_search_tool_result]\nhttp://u\nT\nso",
			"messages[].content[].server_tool_use, messages[].content[].web_search_tool_result"},
		{"/v1/messages", claude, `{"type":"web_search_tool_result","tool_use_id":"s","content":{"type":"web_search_tool_result_error",` +
			`"error_code":"max_uses_exceeded"}}`, "assistant: [web_search_tool_result]\nmax_uses_exceeded", "web_search_tool_result"},
		{"/v1/messages", claude, `{"type":"bash_code_execution_tool_result","tool_use_id":"s","content":{"type":"bash_code_execution_result",` +
			`"stdout":"out","stderr":"","return_code":0,"content":[{"type":"x","file_id":"f"}]}}`,
			"assistant: [bash_code_execution_tool_result]\nout", "bash_code_execution_tool_result"},
		{"/v1/messages", claude, `{"type":"web_fetch_tool_result","tool_use_id":"s","content":{"type":"web_fetch_result","url":"http://u","content":` +
			`{"type":"document","source":{"media_type":"text/plain","data":"page","type":"text"},"title":"T"}}}`,
			"assistant: [web_fetch_tool_result]\nhttp://u\npage\nT", "web_fetch_tool_result"},
		{"/v1/messages", claude, `{"type":"mcp_tool_use","id":"m","name":"echo","server_name":"x","input":{"a":1}},{"type":"mcp_tool_result",` +
			`"tool_use_id":"m","is_error":false,"content":[{"type":"text","text":"hello"}]}`,
			"assistant: [mcp_tool_use]\necho\n{\"a\":1}\n[mcp_tool_result]\nhello", "mcp_tool_use"},
		{"/v1/messages", claude, picture + `,{"type":"redacted_thinking","data":"x"},{"type":"fallback"}`,
			"assistant: [image" + none + "\n[fallback" + none, "redacted_thinking"},
		{"/v1/messages", `{"max_tokens":5,"messages":[{"role":"user","content":[%s]}]}`, `{"type":"document","source":{"type":"content","content":` +
			`[{"type":"text","text":"written"}]}},{"type":"container_upload","file_id":"f"},{"type":"text","text":"q"}`,
			"user: [document]\nwritten\n[container_upload" + none + "\nq",
			"messages[].content[].document, messages[].content[].container_upload"},

		{"/v1/responses", output, `{"type":"input_text","text":"see"},{"type":"input_image","image_url":"data:image/png;base64,aGk="},` +
			`{"type":"input_file","filename":"a.pdf","file_data":"aGk="}`, "tool: see\n[input_image" + none + "\n[input_file]\na.pdf",
			"input[].output[].input_image, input[].output[].input_file"},
		{"/v1/responses", input, `{"type":"web_search_call","id":"w","status":"completed","action":{"type":"search","query":"x"}}`,
			"user: q\nassistant: [web_search_call]\n{\"type\":\"search\",\"query\":\"x\"}\nuser: n", "input[].type=web_search_call"},
		{"/v1/responses", input, `{"type":"file_search_call","queries":["x"],"results":[{"filename":"a","score":0.5,"text":"found"}]}`,
			"assistant: [file_search_call]\nx\na\nfound\nuser: n", "input[].type=file_search_call"},
		{"/v1/responses", input, `{"type":"code_interpreter_call","code":"1+1","container_id":"c","outputs":[{"type":"logs","logs":"2"},` +
			`{"type":"image","url":"data:image/png;base64,aGk="}]}`, "assistant: [code_interpreter_call]\n1+1\n2\nuser: n",
			"code_interpreter_call"},
		{"/v1/responses", input, `{"type":"mcp_call","server_label":"s","name":"echo","arguments":"{\"a\":1}","output":"hello","error":null}`,
			"assistant: [mcp_call]\necho\n{\"a\":1}\nhello\nuser: n", "mcp_call"},
		{"/v1/responses", input, `{"type":"computer_call","call_id":"c","action":{"type":"wait"}},{"type":"computer_call_output","call_id":"c",` +
			`"output":{"type":"computer_screenshot","image_url":"data:image/png;base64,aGk="}}`,
			"assistant: [computer_call]\n{\"type\":\"wait\"}\nuser: [computer_call_output" + none + "\nuser: n", "computer_call_output"},
		{"/v1/responses", input, `{"type":"local_shell_call","call_id":"c","action":{"type":"exec","command":["ls"]}},{"type":"local_shell_call_output",` +
			`"id":"c","output":"a.txt"}`, "[\"ls\"]}\nuser: [local_shell_call_output]\na.txt\nuser: n", "local_shell_call_output"},
		{"/v1/responses", input, `{"type":"tool_search_call","arguments":{"q":"x"},"input":{},"name":5},{"type":"mcp_list_tools","tools":[{"name":"x"}]}`,
			"assistant: [tool_search_call]\n{\"q\":\"x\"}\nuser: n", "mcp_list_tools"},
		{"/v1/responses", input, `{"type":"item_reference","id":"rs_1"},{"type":"image_generation_call","result":"aGk="},{"type":"compaction",` +
			`"encrypted_content":"x"}`, "user: q\nuser: n", "input[].type=item_reference, input[].type=image_generation_call, input[].type=compaction"},

		{"/v1/chat/completions", chat, `{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":` +
			`{"url":"data:image/png;base64,aGk="}}]}`, "tool: see\n[image_url" + none, "messages[].content[].image_url"},
		{"/v1/chat/completions", chat, `{"content":[{"type":"input_audio","input_audio":{}}],"tool_call_id":"c","role":"tool"}`,
			"tool: [input_audio" + none, "messages[].content[].input_audio"},
		{"/v1/chat/completions", chat, `{"role":"tool","tool_call_id":"c","images":["aGk="],"content":"see"}`, "tool: see\n[images" + none,
			"messages[].images"},
		{"/v1/chat/completions", chat, `{"role":"tool","tool_call_id":"c","content":"r"},{"role":"assistant","content":"a","audio":{"id":"x"}},` +
			`{"role":"user","content":"n"}`, "assistant: a\n[audio" + none + "\nuser: n", "messages[].audio"},
		{"/api/chat", ollama, `{"role":"tool","tool_name":"f","content":"see","images":["aGk="]}`, "tool: see\n[images" + none,
			"messages[].images"},
	} {
		body := strings.Replace(c.form, "%s", c.what, 1)
		answer, all := s.ask(t, "POST", c.path, body)
		if ignored := answer.Header.Get("X-Tandem-Ignored"); answer.StatusCode != http.StatusOK ||
			!strings.Contains(prompt(), c.reads+"\n") || !strings.Contains(ignored, c.ignored) || c.ignored == "" && ignored != "" {
			t.Errorf("%s %s: %s, ignored %q, read as\n%s\nwant\n%s: %s", c.path, body, answer.Status, ignored, prompt(), c.reads, all)
		}
	}
	for _, c := range []struct{ path, body, param string }{
		{"/v1/messages", `{"max_tokens":1,"messages":[{"role":"user","content":[` + picture + `]}]}`, "messages[0].content[0].type"},
		{"/v1/messages", `{"max_tokens":1,"system":[` + picture + `],"messages":[{"role":"user","content":"a"}]}`, "system[0].type"},
		{"/v1/messages", strings.Replace(result, "%s", `{"type":"text","text":5}`, 1), "messages[2].content[0].content"},
		{"/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`, "input[0].content[0].type"},
		{"/v1/responses", `{"input":[{"type":"item_reference","id":"msg_1"}]}`, "input[0].type"},
		{"/v1/chat/completions", `{"messages":[{"content":[{"type":"image_url","image_url":{}}],"role":"user"}]}`, "messages[0].content[0].type"},
		{"/v1/chat/completions", `{"messages":[{"images":["x"],"content":"a","role":"user"}]}`, "messages[0].images"},
		{"/api/chat", `{"messages":[{"role":"user","content":"a","images":["aGk="]}]}`, "messages[0].images"},
	} {
		if answer, all := s.ask(t, "POST", c.path, c.body); answer.StatusCode != http.StatusBadRequest || !strings.Contains(all, c.param) {
			t.Errorf("%s %s: %s %s, want 400 of %s", c.path, c.body, answer.Status, all, c.param)
		}
	}
}

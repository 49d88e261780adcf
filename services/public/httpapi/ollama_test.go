package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// answered is an answer of Ollama's API, put together from its lines.
type answered struct {
	Message struct {
		Content, Thinking string
		ToolCalls         []struct {
			Function struct {
				Name      string
				Arguments map[string]any
			}
		} `json:"tool_calls"`
	}
	Response, Thinking string
	Done               bool
	Reason             string `json:"done_reason"`
	Prompt             int    `json:"prompt_eval_count"`
	Output             int    `json:"eval_count"`
}

// lines puts the lines of an answer together.
func (s *site) lines(t *testing.T, path, body string) (all answered, n int) {
	t.Helper()
	answer, text := s.ask(t, "POST", path, body)
	if answer.StatusCode != 200 {
		t.Fatalf("%s: %s: %s", body, answer.Status, text)
	}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		var x answered
		if err := json.Unmarshal([]byte(line), &x); err != nil || all.Done {
			t.Fatalf("%s: %v, after the last line: %v", line, err, all.Done)
		}
		x.Message.Content, x.Message.Thinking = all.Message.Content+x.Message.Content, all.Message.Thinking+x.Message.Thinking
		x.Message.ToolCalls = append(all.Message.ToolCalls, x.Message.ToolCalls...)
		x.Response, x.Thinking = all.Response+x.Response, all.Thinking+x.Thinking
		all = x
		n++
	}
	if kind := answer.Header.Get("Content-Type"); n > 1 && kind != "application/x-ndjson" {
		t.Errorf("Content-Type %q", kind)
	}
	return all, n
}

// TestOllama: calls, thoughts and text, in lines and whole; calls are whole, with an object.
func TestOllama(t *testing.T) {
	const body = `{"model":"gopher:latest","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}},` +
		`{"type":"function","function":{"name":"g"}}]%s}`
	const want = `Hm. I look. [{{f map[a:x` + "\n" + `y]}} {{g map[]}}] true stop`
	for n := 1; n < len(twoCalls); n += 3 {
		s := serve(t, writes(twoCalls, n, tandem.FinishStop), large)
		for fields, most := range map[string]int{"": 1 << 10, `,"stream":true`: 1 << 10, `,"stream":false`: 1} {
			got, count := s.lines(t, "/api/chat", fmt.Sprintf(body, fields))
			m := got.Message
			text := fmt.Sprintf("%s %s %v %v %s", m.Thinking, m.Content, m.ToolCalls, got.Done, got.Reason)
			if text != want || count > most || got.Prompt == 0 || got.Output == 0 {
				t.Fatalf("%s in %d lines: %s, %+v, want %s", fields, count, text, got, want)
			}
		}
	}
}

// TestOllamaForms: what clients send becomes a conversation or a text; what this server cannot do is refused with a text.
func TestOllamaForms(t *testing.T) {
	var last tandem.Request
	s := serve(t, written(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		last = r
		return writes("ok", 1, tandem.FinishStop)(ctx, r, sink)
	}), large)
	for _, tc := range []struct{ path, body, want string }{
		{"/api/chat", `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"function":{"name":"f",
			"arguments":{"city":"x"}}}]},{"role":"tool","content":"r","tool_name":"f"}],"tools":[],"keep_alive":"5m","think":false,
			"options":{"num_ctx":4096,"num_gpu":1}}`, "<s>enable_thinking=false\nuser: a\nassistant: \ntool: r\n"},
		{"/api/chat", `{"messages":[{"role":"user","content":"a"}],"format":"json"}`,
			"<s>system: Answer with one JSON object, and with nothing else.\nuser: a\n"},
		{"/api/chat", `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}],"format":{"type":"object"}}`,
			"<s>system: s\n\nAnswer with one JSON value that follows this JSON Schema, and with nothing else:\n{\"type\":\"object\"}\n" +
				"user: a\n"},
		{"/api/generate", `{"prompt":"a","system":"s","stream":false}`, "<s>system: s\nuser: a\n"},
		{"/api/generate", `{"prompt":"a","raw":true}`, "<s>a"},
		{"/api/generate", `{"prompt":"a","suffix":"b"}`, "<s><261>a<262>b<263>"},
	} {
		got, _ := s.lines(t, tc.path, tc.body)
		if text := (alphabet{}).DecodeWritten(last.Tokens); text != tc.want || got.Message.Content+got.Response != "ok" {
			t.Errorf("%s\nis read as %q\nwant %q, answer %+v", tc.body, text, tc.want, got)
		}
	}
	s.lines(t, "/api/chat", `{"messages":[{"role":"user","content":"a"}],`+
		`"options":{"num_predict":3,"temperature":0.5,"seed":7,"stop":["x"],"top_k":4}}`)
	if r := last; r.MaxTokens != 3 || r.Sampling.Temperature != 0.5 || r.Sampling.Seed != 7 || r.Stop[0] != "x" || r.Sampling.TopK != 4 {
		t.Errorf("options: %+v", r)
	}
	for _, tc := range []struct{ path, body, want string }{
		{"/api/chat", `{"messages":[{"role":"user","content":"a"}],"options":{"num_ctx":8192}}`, "options.num_ctx is 8192"},
		{"/api/chat", `{"messages":[{"role":"user","content":"a","images":["aGk="]}]}`, "messages[0].images"},
		{"/api/generate", `{"prompt":"a","context":[1,300]}`, "context[1] is 300: vocabulary has 300"},
		{"/api/generate", `{"prompt":"a","context":[1,-1]}`, "context[1] is -1"},
		{"/api/generate", `{"prompt":"a","context":[1.5]}`, "context[0] is 1.5: want an integer"},
		{"/api/generate", `{"prompt":"a","context":"x"}`, `context is "x": want an array`},
		{"/api/generate", `{"prompt":"a","context":[` + strings.Repeat("1,", 4096) + `1]}`, "context has 4097 tokens: want at most 4095"},
		{"/api/generate", `{"prompt":"a","context":[1],"raw":true}`, "context is there with raw"},
		{"/api/generate", `{"prompt":"a","options":{"num_predict":2.5}}`, "options.num_predict is 2.5: want an integer"},
		{"/api/generate", `{"prompt":"a","options":{"temperature":-1}}`, "options.temperature is -1: want 0 to 100"},
		{"/api/generate", `{"prompt":"a","options":{"stop":[1]}}`, "options.stop[0] is 1: want a string"},
		{"/api/chat", `{"messages":[{"role":"user","content":"a"}],"options":{"top_k":-2}}`, "options.top_k is -2: want"},
		{"/api/chat", `{"messages":[{"role":"user","content":"a"}],"options":{"repeat_last_n":-2}}`, "options.repeat_last_n is -2: want"},
		{"/api/chat", `{"messages":[{"role":"user","content":"a"}],"options":{"num_ctx":2048.5}}`, "options.num_ctx is 2048.5: want"},
		{"/api/generate", `{"prompt":"a","template":"x"}`, "template is not supported"},
		{"/api/chat", `{"messages":5}`, "messages is 5: want an array"},
		{"/api/chat", `[`, "the body is not JSON"},
	} {
		answer, all := s.ask(t, "POST", tc.path, tc.body)
		var e struct{ Error string }
		if err := json.Unmarshal([]byte(all), &e); err != nil || answer.StatusCode != 400 || !strings.Contains(e.Error, tc.want) {
			t.Errorf("%s: %s: %s, want %s", tc.body, answer.Status, all, tc.want)
		}
	}
}

// TestOllamaModels: what programs look for before they ask.
func TestOllamaModels(t *testing.T) {
	s := serve(t, script(nil), func(c *Config) {
		c.Model.Aliases = []string{"qwen:latest"}
		c.Model.Template = "{{ x }}"
		c.Model.Bytes, c.Model.Parameters, c.Model.Stored = 1_500_000_000, 1_543_000_000, "Q4_K_M"
		c.Model.Digest = func() string { return strings.Repeat("ab", 32) }
	})
	for path, want := range map[string]string{
		"/api/version": `{"version":"0.17.4"}`,
		"/api/tags":    `"name":"qwen:latest","model":"qwen:latest"`,
		"/api/ps":      `"context_length":64`,
		"/api/ps ":     `"size":1500000000,"size_vram":0,"digest":"` + strings.Repeat("ab", 32) + `"`,
		"/api/tags ":   `"parameter_size":"1.5B","quantization_level":"Q4_K_M"`,
	} {
		path = strings.TrimSpace(path)
		if answer, all := s.ask(t, "GET", path, ""); answer.StatusCode != 200 || !strings.Contains(all, want) {
			t.Errorf("%s: %s: %s, want %s", path, answer.Status, all, want)
		}
	}
	for _, body := range []string{`{"model":"gopher"}`, `{"name":"gopher"}`} {
		if _, all := s.ask(t, "POST", "/api/show", body); !strings.Contains(all, `"capabilities":["completion","structured_outputs","tools","thinking"]`) ||
			!strings.Contains(all, `"llama.context_length":64`) {
			t.Errorf("show: %s", all)
		}
	}
	if _, all := s.ask(t, "POST", "/api/generate", `{"model":"gopher"}`); !strings.Contains(all, `"done":true,"done_reason":"load"`) {
		t.Errorf("load: %s", all)
	}
	if answer, all := s.ask(t, "POST", "/api/copy", `{"source":"x"}`); answer.StatusCode != 404 || !strings.HasPrefix(all, `{"error":"`) {
		t.Errorf("copy: %s: %s", answer.Status, all)
	}
}

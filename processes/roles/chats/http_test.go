package chats

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi"
	"github.com/tandem-llm/tandem/text/token"
)

// scripted says the same to everybody, three bytes at a time, and keeps what it was asked.
type scripted struct {
	says  string
	vocab *token.Vocab
	asked string // the latest prompt
}

// Generate implements tandem.Generator.
func (s *scripted) Generate(_ context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
	s.asked = s.vocab.DecodeWritten(slices.Clone(r.Tokens))
	res := tandem.Result{Identity: "fp_1", Finish: tandem.FinishStop, PromptTokens: len(r.Tokens)}
	err := sink.Started(tandem.Started{Request: r})
	for rest := s.says; rest != "" && err == nil; res.OutputTokens++ {
		n := min(3, len(rest))
		err = sink.Delta(tandem.Delta{Text: rest[:n], Tokens: []tandem.Token{5}, Origins: []tandem.Origin{0}})
		rest = rest[n:]
	}
	return res, err
}

// served is a server of a scripted model with a chat template.
type served struct {
	*scripted
	url string
}

func serve(t *testing.T, template, says string) served {
	t.Helper()
	const target = "../../../models/gopher-19m-q8_0.gguf"
	vocab, err := token.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "t.jinja")
	if err := os.WriteFile(path, []byte(template), 0o600); err != nil {
		t.Fatal(err)
	}
	c, vocab, err := Open(path, "", target, vocab)
	if err != nil {
		t.Fatal(err)
	}
	model := &scripted{says: says, vocab: vocab}
	s, err := httpapi.New(httpapi.Config{Listen: "127.0.0.1:0", Generator: model, Model: httpapi.Model{Name: "m", Architecture: "llama"},
		Defaults: ask.Defaults{MaxTokens: 5, Sampling: tandem.Sampling{TopP: 1}, Bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 10},
			Strategy: tandem.StrategyPlanner},
		Limits: tandem.Limits{Context: 1 << 14, Vocab: vocab.Size()}, Vocab: vocab, Chat: c, Counters: new(tandem.Counters)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		work.Wait()
	})
	return served{model, s.URL()}
}

// ask posts a body, and returns the answer.
func (s served) ask(t *testing.T, path, body string) (*http.Response, string) {
	t.Helper()
	answer, err := http.Post(s.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(all)
}

// TestTurnsOverHTTP: what agents send to a template whose turns must alternate, in each API.
func TestTurnsOverHTTP(t *testing.T) {
	const (
		schema = `{"type":"object","properties":{"a":{"type":"string"}}}`
		tool   = `"tools":[{"name":"f","input_schema":` + schema + `}]`
		chat   = `"tools":[{"type":"function","function":{"name":"f","parameters":` + schema + `}}]`
		calls  = `"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]`
		call   = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"
		result = "<tool_response>\nr\n</tool_response>"
	)
	s := serve(t, first+strictly+plain, "hi")
	for _, c := range []struct{ path, body, want string }{
		{"/v1/messages", `{"max_tokens":5,"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`, "<user>a\n\nb"},
		{"/v1/messages", `{"max_tokens":5,` + tool + `,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use",` +
			`"id":"t","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"r"},` +
			`{"type":"text","text":"note"}]}]}`, "q<assistant>" + call + "<user>" + result + "\n\nnote"},
		{"/v1/responses", `{"max_output_tokens":5,"input":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`, "<user>a\n\nb"},
		{"/v1/responses", `{"max_output_tokens":5,"input":[{"role":"user","content":"a"},{"type":"function_call","call_id":"c","name":"f",` +
			`"arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"r"},{"role":"user","content":"b"}]}`,
			"<user>a<assistant>" + call + "<user>" + result + "\n\nb"},
		{"/v1/chat/completions", `{"max_tokens":5,` + chat + `,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,` +
			calls + `},{"role":"tool","tool_call_id":"c","content":"r"},{"role":"user","content":"b"}]}`,
			"q<assistant>" + call + "<user>" + result + "\n\nb"},
		{"/api/chat", `{"stream":false,"messages":[{"role":"system","content":"s"},{"role":"assistant","content":"hi"},` +
			`{"role":"user","content":"a"},{"role":"user","content":"b"}]}`, "<user>s|<assistant>hi<user>a\n\nb"},
	} {
		s.asked = ""
		if answer, all := s.ask(t, c.path, c.body); answer.StatusCode != http.StatusOK || !strings.HasSuffix(s.asked, c.want) {
			t.Errorf("%s %s: %s, asked\n%s\nwant\n%s\n%s", c.path, c.body, answer.Status, s.asked, c.want, all)
		}
	}
}

// TestToldForm: a template that has a family's own markers and shows no tools tells of Hermes' form, and both are calls.
func TestToldForm(t *testing.T) {
	const body = `{"messages":[{"role":"user","content":"q"}],"tools":[{"type":"function","function":{"name":"f",` +
		`"parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}]}`
	for _, marks := range []string{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call|>",
		"<arg_key>", "<function=<parameter=", "<TOOLCALL>", ""} {
		source := "{% if false %}" + marks + "{% endif %}" + plain
		for _, says := range []string{"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b\"}}\n</tool_call>",
			"{\"name\": \"f\", \"arguments\": {\"a\": \"b\"}}"} {
			s := serve(t, source, says)
			_, all := s.ask(t, "/v1/chat/completions", body)
			if !strings.Contains(s.asked, "<tool_call>") || !strings.Contains(all, `"arguments":"{\"a\": \"b\"}"`) ||
				!strings.Contains(all, `"finish_reason":"tool_calls"`) || !strings.Contains(all, `"content":null`) {
				t.Errorf("a template with %s, answer %s: asked %s, got %s", marks, says, s.asked, all)
			}
		}
	}
	s := serve(t, "{% if false %}<｜tool▁call▁begin｜>{% endif %}"+plain,
		"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \"b\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>")
	if _, all := s.ask(t, "/v1/chat/completions", body); !strings.Contains(all, `"arguments":"{\"a\": \"b\"}"`) {
		t.Errorf("DeepSeek's own form: %s", all)
	}
}

// TestResultsOfCalls: a result is shown as that of the call of its id, or without one of the first of its name that has none, in each API.
func TestResultsOfCalls(t *testing.T) {
	s := serve(t, "{% for m in messages %}<{{ m.role }}>{% for c in m.tool_calls %}"+
		"[{{ c.function.name }} {{ c.function.arguments|tojson }}]"+
		"{% endfor %}{{ m.name }}{{ ':' if m.name }}{{ m.content }}{% endfor %}{{ tools }}", "hi")
	const want = `<assistant>[f {"a": 1}][g {}][f {"a": 2}]<tool>f:one<tool>g:two<tool>f:three`
	for _, c := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[` +
			`{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},{"id":"2","type":"function","function":{"name":"g",` +
			`"arguments":"{}"}},{"id":"3","type":"function","function":{"name":"f","arguments":"{\"a\": 2}"}}]},{"role":"tool",` +
			`"tool_call_id":"3","content":"three"},{"role":"tool","tool_call_id":"2","content":"two"},{"role":"tool","tool_call_id":"1",` +
			`"content":"one"}]}`},
		{"/v1/messages", `{"max_tokens":5,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use","id":"1",` +
			`"name":"f","input":{"a":1}},{"type":"tool_use","id":"2","name":"g","input":{}},{"type":"tool_use","id":"3","name":"f","input":` +
			`{"a":2}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"2","content":"two"},{"type":"tool_result",` +
			`"tool_use_id":"3","content":"three"},{"type":"tool_result","tool_use_id":"1","content":"one"}]}]}`},
		{"/v1/responses", `{"max_output_tokens":5,"input":[{"role":"user","content":"q"},{"type":"function_call","call_id":"1","name":"f",` +
			`"arguments":"{\"a\":1}"},{"type":"function_call","call_id":"2","name":"g","arguments":"{}"},{"type":"function_call","call_id":"3",` +
			`"name":"f","arguments":"{\"a\":2}"},{"type":"function_call_output","call_id":"3","output":"three"},{"type":` +
			`"function_call_output","call_id":"1","output":"one"},{"type":"function_call_output","call_id":"2","output":"two"}]}`},
		{"/api/chat", `{"stream":false,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"function":` +
			`{"name":"f","arguments":{"a":1}}},{"function":{"name":"g","arguments":{}}},{"function":{"name":"f","arguments":{"a":2}}}]},` +
			`{"role":"tool","tool_name":"g","content":"two"},{"role":"tool","name":"f","content":"one"},{"role":"tool","tool_name":"f",` +
			`"content":"three"}]}`},
		{"/api/chat", `{"stream":false,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"id":"x",` +
			`"function":{"name":"f","arguments":{"a":1}}},{"id":"y","function":{"name":"g","arguments":{}}},{"id":"z","function":{"name":"f",` +
			`"arguments":{"a":2}}}]},{"role":"tool","tool_call_id":"z","content":"three"},{"role":"tool","tool_call_id":"y","content":"two"},` +
			`{"role":"tool","tool_call_id":"x","content":"one"}]}`},
	} {
		if answer, all := s.ask(t, c.path, c.body); answer.StatusCode != http.StatusOK || !strings.Contains(s.asked, want) {
			t.Errorf("%s %s: %s, asked\n%s\nwant\n%s\n%s", c.path, c.body, answer.Status, s.asked, want, all)
		}
	}
}

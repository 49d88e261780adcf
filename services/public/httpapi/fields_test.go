package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// heardBy returns a server that writes "ok", and what its generator was asked last.
func heardBy(t testing.TB, change func(*Config)) (*site, *tandem.Request) {
	last := new(tandem.Request)
	return serve(t, written(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		*last = r
		return writes("ok", 1, tandem.FinishStop)(ctx, r, sink)
	}), func(c *Config) {
		large(c)
		if change != nil {
			change(c)
		}
	}), last
}

// askBodies are bodies of each API; %s are further fields, with the comma in front.
var askBodies = map[string]string{
	"/v1/chat/completions": `{"messages":[{"role":"user","content":"a"}]%s}`,
	"/v1/completions":      `{"prompt":"a"%s}`,
	"/v1/responses":        `{"input":"a"%s}`,
	"/v1/messages":         `{"max_tokens":9,"messages":[{"role":"user","content":"a"}]%s}`,
	"/api/chat":            `{"messages":[{"role":"user","content":"a"}]%s}`,
	"/api/generate":        `{"prompt":"a"%s}`,
	"/completion":          `{"prompt":"a"%s}`,
}

// TestUnheard: in every API each field without an effect is named, with its path; what means the same everywhere is heard.
func TestUnheard(t *testing.T) {
	s, last := heardBy(t, nil)
	embeds, _ := embedding(t, nil)
	for _, tc := range []struct{ path, fields, want string }{
		{"/v1/responses", `"foo":1,"bar":null`, "foo"},
		{"/v1/responses", `"logprobs":true,"n":2,"user":"me","store":true`, "logprobs, n, user, store"},
		{"/v1/responses", `"store":false,"truncation":"disabled","metadata":{"a":"b"},"background":false`, ""},
		{"/v1/responses", `"truncation":"auto","include":["x"],"text":{"verbosity":"low"}`, "include, text.verbosity, truncation"},
		{"/v1/responses", `"tools":[{"type":"function","name":"f","cache":1}],"tool_choice":"auto"`, "tools[].cache"},
		{"/v1/messages", `"foo":{"a":1},"metadata":{"user_id":"x"},"presence_penalty":1`, "foo, metadata, presence_penalty"},
		{"/v1/messages", `"system":[{"type":"text","text":"s","cache_control":{}}],"thinking":{"type":"enabled","budget_tokens":9}`,
			"system[].cache_control, thinking.budget_tokens"},
		{"/v1/messages", `"tools":[{"name":"f","input_schema":{"x":1},"cache_control":{}}]`, "tools[].cache_control"},
		{"/api/chat", `"logprobs":true,"keep_alive":"5m","options":{"num_gpu":1,"mirostat":0,"top_k":null}`,
			"keep_alive, logprobs, options.mirostat, options.num_gpu"},
		{"/api/chat", `"prompt":"","raw":true`, "raw"},
		{"/api/generate", `"foo":1,"options":{"typical_p":1}`, "foo, options.typical_p"},
		{"/completion", `"foo":1,"typical_p":1`, "foo, typical_p"},
	} {
		body := fmt.Sprintf(askBodies[tc.path], ","+tc.fields)
		answer, all := s.ask(t, "POST", tc.path, body)
		if got := sortedNames(answer.Header.Get("X-Tandem-Ignored")); answer.StatusCode != 200 || got != sortedNames(tc.want) {
			t.Errorf("%s with %s: %s, header %q: want %q: %s", tc.path, tc.fields, answer.Status, got, tc.want, all)
		}
	}
	for path, body := range map[string]string{"/api/embed": `{"input":"a","foo":1,"options":{"num_gpu":1},"temperature":0}`,
		"/api/embeddings": `{"prompt":"a","foo":1,"options":{"num_gpu":1},"temperature":0}`,
		"/v1/embeddings":  `{"input":"a","foo":1,"options":{"num_gpu":1},"temperature":0}`} {
		answer, all := embeds.ask(t, "POST", path, body)
		got := strings.Replace(sortedNames(answer.Header.Get("X-Tandem-Ignored")), "options.num_gpu", "options", 1)
		if answer.StatusCode != 200 || got != "foo, options, temperature" {
			t.Errorf("%s: %s, header %q: %s", path, answer.Status, got, all)
		}
	}
	for path, form := range askBodies {
		options := `"seed":7,"top_k":-1.0,"min_p":0.25,"presence_penalty":0.5,"frequency_penalty":1,"repeat_penalty":1.5,"repeat_last_n":-1,` +
			`"stop":["x"],"logit_bias":{"5":1},"ignore_eos":true`
		if strings.HasPrefix(path, "/api/") {
			options = `"options":{` + options + `}`
		}
		answer, all := s.ask(t, "POST", path, fmt.Sprintf(form, ","+options))
		if path == "/v1/messages" {
			answer.Header.Set("X-Tandem-Ignored", strings.Replace(sortedNames(answer.Header.Get("X-Tandem-Ignored")),
				"frequency_penalty, logit_bias, presence_penalty", "", 1))
			last.Sampling.PresencePenalty, last.Sampling.FrequencyPenalty, last.Sampling.Bias = 0.5, 1, make([]tandem.Bias, 1)
		}
		p := last.Sampling
		if got := answer.Header.Get("X-Tandem-Ignored"); answer.StatusCode != 200 || got != "" || p.Seed != 7 || p.TopK != 0 ||
			p.MinP != 0.25 || p.PresencePenalty != 0.5 || p.FrequencyPenalty != 1 || p.RepeatPenalty != 1.5 ||
			p.RepeatLast != tandem.MaxRepeatLast ||
			last.Stop[0] != "x" || len(p.Bias) != 1 || !last.IgnoreEOS {
			t.Errorf("%s: %s, header %q, asks for %+v: %s", path, answer.Status, got, *last, all)
		}
	}
}

func sortedNames(header string) string {
	all := strings.Split(header, ", ")
	for i := range all { // a handful
		for k := range i {
			if all[i] < all[k] {
				all[i], all[k] = all[k], all[i]
			}
		}
	}
	return strings.Join(all, ", ")
}

// TestStrictEverywhere: a strict server refuses in each API what others name, and foreign fields are refused by all.
func TestStrictEverywhere(t *testing.T) {
	strict, _ := heardBy(t, func(c *Config) { c.Strict = true })
	mild, _ := heardBy(t, nil)
	for path, form := range askBodies {
		if answer, all := strict.ask(t, "POST", path, fmt.Sprintf(form, "")); answer.StatusCode != 200 {
			t.Errorf("%s: %s: %s", path, answer.Status, all)
		}
		for _, s := range []*site{strict, mild} {
			field := `,"foo":1`
			if s == mild {
				field = `,"grammar":"x"`
			}
			answer, all := s.ask(t, "POST", path, fmt.Sprintf(form, field))
			if answer.StatusCode != 400 || !strings.Contains(all, strings.Split(field, `"`)[1]) {
				t.Errorf("%s with %s: %s: %s", path, field, answer.Status, all)
			}
		}
	}
	for _, field := range []string{`"user":"me"`, `"store":false`, `"metadata":{"a":"b"}`, `"prompt_cache_key":"x"`} {
		body := fmt.Sprintf(askBodies["/v1/responses"], ","+field)
		if answer, all := strict.ask(t, "POST", "/v1/responses", body); answer.StatusCode != 200 {
			t.Errorf("%s: %s: %s", field, answer.Status, all)
		}
	}
}

// TestWholeNumbers: integers may be written 9.0 and 9e0 in every API, and are refused by their names where they are none.
func TestWholeNumbers(t *testing.T) {
	s, last := heardBy(t, nil)
	for _, tc := range []struct{ path, field, name string }{
		{"/v1/chat/completions", `"max_tokens":%s`, "max_tokens"},
		{"/v1/chat/completions", `"max_output_tokens":%s`, "max_output_tokens"},
		{"/v1/completions", `"max_tokens":%s`, "max_tokens"},
		{"/v1/responses", `"max_output_tokens":%s`, "max_output_tokens"},
		{"/v1/responses", `"max_tokens":%s`, "max_tokens"},
		{"/v1/responses", `"max_completion_tokens":%s`, "max_completion_tokens"},
		{"/v1/messages", `"max_tokens":%s`, "max_tokens"},
		{"/api/chat", `"options":{"num_predict":%s,"num_ctx":2.048e3,"top_k":40.0}`, "options.num_predict"},
		{"/api/generate", `"options":{"num_predict":%s,"num_ctx":2048.0}`, "options.num_predict"},
		{"/completion", `"n_predict":%s,"n_probs":2.0`, "n_predict"},
	} {
		form := askBodies[tc.path]
		if tc.path == "/v1/messages" {
			form = strings.Replace(form, `"max_tokens":9,`, "", 1)
		}
		for _, v := range []string{"9", "9.0", "9e0", "0.9e1"} {
			answer, all := s.ask(t, "POST", tc.path, fmt.Sprintf(form, ","+fmt.Sprintf(tc.field, v)))
			if answer.StatusCode != 200 || last.MaxTokens != 9 {
				t.Errorf("%s with %s of %s: %s, %d tokens: %s", tc.path, tc.name, v, answer.Status, last.MaxTokens, all)
			}
		}
		for _, v := range []string{"9.5", `"9"`, "true", "1e99"} {
			answer, all := s.ask(t, "POST", tc.path, fmt.Sprintf(form, ","+fmt.Sprintf(tc.field, v)))
			if answer.StatusCode != 400 || !strings.Contains(all, tc.name) || !strings.Contains(all, "want an integer") {
				t.Errorf("%s with %s of %s: %s: %s", tc.path, tc.name, v, answer.Status, all)
			}
		}
	}
	for _, v := range []string{"0", "-1", "-2", "-7.0"} { // Ollama's words for no limit
		s.lines(t, "/api/generate", `{"prompt":"a","options":{"num_predict":`+v+`}}`)
		if last.MaxTokens != 1<<12-len(last.Tokens) && last.MaxTokens != 5 {
			t.Errorf("num_predict %s: %d tokens", v, last.MaxTokens)
		}
	}
	for path, form := range askBodies { // a window of nothing is no penalty
		options := `"repeat_penalty":1.5,"repeat_last_n":0`
		if strings.HasPrefix(path, "/api/") {
			options = `"options":{` + options + `}`
		}
		if s.ask(t, "POST", path, fmt.Sprintf(form, ","+options)); last.Sampling.RepeatPenalty != 1 {
			t.Errorf("%s: %+v", path, last.Sampling)
		}
	}
}

// TestResponsesEcho: an answer repeats what was asked for, and says what is wrong in its own words.
func TestResponsesEcho(t *testing.T) {
	s, last := heardBy(t, nil)
	got := s.post(t, "/v1/responses", `{"input":"a","max_tokens":7,"metadata":{"a":"b"},"reasoning":{"effort":"low"},`+
		`"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}}}`)
	echo := map[string]any{}
	for _, name := range []string{"max_output_tokens", "metadata", "reasoning", "text"} {
		echo[name] = got[name]
	}
	raw, _ := json.Marshal(echo)
	same(t, "echo", string(raw), `{"max_output_tokens":7,"metadata":{"a":"b"},"reasoning":{"effort":"low","summary":null},`+
		`"text":{"format":{"name":"n","schema":{"type":"object"},"strict":true,"type":"json_schema"}}}`)
	if last.MaxTokens != 7 {
		t.Errorf("%d tokens: want 7", last.MaxTokens)
	}
	got = s.post(t, "/v1/responses", `{"input":"a"}`)
	raw, _ = json.Marshal([]any{got["max_output_tokens"], got["metadata"], got["reasoning"], got["text"]})
	same(t, "defaults", string(raw), `[null,{},{"effort":null,"summary":null},{"format":{"type":"text"}}]`)
	for body, says := range map[string]string{
		`{"input":[]}`:                           "input has nothing to answer",
		`{}`:                                     "input has nothing to answer",
		`{"input":[{"type":"web_search_call"}]}`: "input has nothing to answer",
		`{"input":"a","metadata":[1]}`:           "metadata is [1]: want an object",
		`{"input":"a","max_output_tokens":0}`:    "max_output_tokens is 0: want 1 or more",
		`{"input":"a","max_tokens":3,"max_output_tokens":4}`: "say different things",
		`{"input":"a","temperature":-1}`:                     "temperature is -1",
		`{"input":"a","foo":1,"foo":2}`:                      "foo is there twice",
	} {
		if p := s.refused(t, "POST", "/v1/responses", body); p.status != 400 || !strings.Contains(p.Message, says) ||
			strings.Contains(p.Message, "messages") {
			t.Errorf("%s: %+v: want %s", body, p, says)
		}
	}
}

// TestOllamaContext: the last line of /api/generate has the ids of prompt and answer, and a request with them goes on from there.
func TestOllamaContext(t *testing.T) {
	s, last := heardBy(t, nil)
	for _, stream := range []string{"true", "false"} {
		_, all := s.ask(t, "POST", "/api/generate", `{"prompt":"a","stream":`+stream+`}`)
		rows := strings.Split(strings.TrimSpace(all), "\n")
		var end struct {
			Done    bool
			Context []tandem.Token
		}
		want := append(append([]tandem.Token{}, last.Tokens...), 'x', 'x')
		if err := json.Unmarshal([]byte(rows[len(rows)-1]), &end); err != nil || !end.Done ||
			fmt.Sprint(end.Context) != fmt.Sprint(want) || strings.Count(all, `"context"`) != 1 {
			t.Fatalf("stream %s: %v, %v: want %v: %s", stream, err, end.Context, want, all)
		}
		raw, _ := json.Marshal(end.Context)
		s.lines(t, "/api/generate", `{"prompt":"b","context":`+string(raw)+`}`)
		if got := (alphabet{}).DecodeWritten(last.Tokens); got != "<s>user: a\nxxuser: b\n" {
			t.Errorf("it goes on as %q", got)
		}
	}
	for _, body := range []string{`{"prompt":"a","raw":true}`, `{"prompt":"a","suffix":"b"}`} {
		if _, all := s.ask(t, "POST", "/api/generate", body); strings.Contains(all, `"context"`) {
			t.Errorf("%s: %s", body, all)
		}
	}
	long := `{"prompt":"` + strings.Repeat("a", 1<<11) + `","context":[` + strings.Repeat("1,", 1<<11) + `1]}`
	answer, all := s.ask(t, "POST", "/api/generate", long)
	if answer.StatusCode != 400 || !strings.Contains(all, "maximum context length") {
		t.Errorf("too long: %s: %s", answer.Status, all)
	}
}

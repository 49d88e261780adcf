package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// dialects are a body of each API for a text with three tokens. %s takes further fields.
var dialects = []struct{ name, path, body string }{
	{"chat", "/v1/chat/completions", `{"max_tokens":3,"messages":[{"role":"user","content":"a"}]%s}`},
	{"completions", "/v1/completions", `{"max_tokens":3,"prompt":"a"%s}`},
	{"responses", "/v1/responses", `{"max_output_tokens":3,"input":"a"%s}`},
	{"messages", "/v1/messages", `{"max_tokens":3,"messages":[{"role":"user","content":"a"}]%s}`},
	{"ollama", "/api/chat", `{"options":{"num_predict":3},"messages":[{"role":"user","content":"a"}]%s}`},
	{"ollama", "/api/generate", `{"options":{"num_predict":3},"prompt":"a"%s}`},
	{"llama.cpp", "/completion", `{"n_predict":3,"prompt":"a"%s}`},
	{"llama.cpp", "/infill", `{"n_predict":3,"input_prefix":"a","input_suffix":"b"%s}`},
}

// TestDrawn: in every API, whole and as a stream, the answer tells how it was drawn, and that sent back gives the same text.
func TestDrawn(t *testing.T) {
	s := serve(t, script(nil), func(c *Config) {
		c.Defaults.Sampling = tandem.Sampling{Temperature: 0.5, TopP: 0.25, TopK: 7}
	})
	for _, d := range dialects {
		texts := map[string]bool{}
		for _, stream := range []string{"true", "false"} {
			body := fmt.Sprintf(d.body, `,"stream":`+stream)
			answer, _ := s.ask(t, "POST", d.path, body)
			drawn := answer.Header.Get("X-Tandem-Sampling")
			var p struct {
				Seed        json.Number
				Temperature float64
				TopK        int     `json:"top_k"`
				TopP        float64 `json:"top_p"`
			}
			if err := json.Unmarshal([]byte(drawn), &p); err != nil || answer.StatusCode != 200 || p.Temperature != 0.5 || p.TopK != 7 ||
				p.TopP != 0.25 {
				t.Errorf("%s: %s says %q: %v", d.path, answer.Status, drawn, err)
				continue
			}
			for range 2 {
				seed := `,"stream":false,"seed":` + p.Seed.String()
				if d.name == "ollama" {
					seed = `,"stream":false`
					body = strings.Replace(d.body, `{"num_predict"`, `{"seed":`+p.Seed.String()+`,"num_predict"`, 1)
				} else {
					body = d.body
				}
				again, all := s.ask(t, "POST", d.path, fmt.Sprintf(body, seed))
				if got := again.Header.Get("X-Tandem-Sampling"); got != drawn {
					t.Errorf("%s: again %q, want %q", d.path, got, drawn)
				}
				texts[said(t, all)+p.Seed.String()] = true
			}
		}
		if len(texts) != 2 { // each of two seeds has one text
			t.Errorf("%s: %v: want the same text for the same seed", d.path, texts)
		}
	}
}

// said returns the text of an answer of any API, which consists of letters of "hello ".
func said(t *testing.T, all string) string {
	t.Helper()
	for _, text := range slices.Sorted(maps.Keys(texts(object(t, all)))) {
		if len(text) == 3 && strings.Trim(text, "helo ") == "" {
			return text
		}
	}
	t.Errorf("no text in %s", all)
	return ""
}

// texts returns all texts in a JSON value.
func texts(v any) map[string]bool {
	out := map[string]bool{}
	switch v := v.(type) {
	case string:
		out[v] = true
	case map[string]any:
		for _, x := range v {
			maps.Copy(out, texts(x))
		}
	case []any:
		for _, x := range v {
			maps.Copy(out, texts(x))
		}
	}
	return out
}

// TestRequestIDs: in every API the id is the same in header, log and error, whether the error comes first or in a stream.
func TestRequestIDs(t *testing.T) {
	var log locked
	s := serve(t, written(func(_ context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		if err := sink.Started(tandem.Started{Request: r}); err != nil {
			return tandem.Result{}, err
		}
		_ = sink.Delta(tandem.Delta{Text: "x", Tokens: []tandem.Token{1}, Origins: []tandem.Origin{0}})
		return tandem.Result{}, tandem.Errorf("generate", tandem.Unavailable, "no verifier")
	}), func(c *Config) { c.Log = slog.New(slog.NewJSONHandler(&log, nil)) })
	for i, d := range dialects {
		for _, tc := range []struct {
			fields, id string
			status     int
		}{{`,"stream":true`, fmt.Sprintf("stream-%d", i), 200}, {`,"stream":false`, fmt.Sprintf("whole-%d", i), 503}, {`,"stream":7`, fmt.Sprintf("bad-%d", i), 400},
			{`,"stream":false`, "", 503}} {
			answer, all := s.ask(t, "POST", d.path, fmt.Sprintf(d.body, tc.fields), "X-Request-Id", tc.id)
			id := answer.Header.Get("X-Request-Id")
			if answer.StatusCode != tc.status || id == "" || tc.id != "" && id != tc.id {
				t.Errorf("%s%s: %s, id %q: want %d, %q: %s", d.path, tc.fields, answer.Status, id, tc.status, tc.id, all)
			}
			if !strings.Contains(all, `"request_id":"`+id+`"`) {
				t.Errorf("%s%s: no id %q in %s", d.path, tc.fields, id, all)
			}
			if !strings.Contains(log.String(), `"request":"`+id+`"`) {
				t.Errorf("%s%s: no id %q in the log", d.path, tc.fields, id)
			}
			if got := answer.Header.Get("Request-Id"); (got == id) != (d.name == "messages") {
				t.Errorf("%s: Anthropic's header says %q", d.path, got)
			}
		}
	}
}

// TestDialectCounters: requests are counted by API, ignored fields by API and name, and what clients invent by no name.
func TestDialectCounters(t *testing.T) {
	counters := new(tandem.Counters)
	keys := keysOf(t, "k")
	s := serve(t, script(nil), func(c *Config) { c.Counters, c.Keys = counters, keys })
	want := map[string]int64{}
	for i, d := range dialects {
		fields := fmt.Sprintf(`,"cache_prompt":true,"invented_%d":1,"invented":{"user":1}`, i)
		if d.name == "ollama" {
			fields = ""
			d.body = strings.Replace(d.body, `{"num_predict"`, `{"mirostat":1,"invented":2,"num_predict"`, 1)
			want["dialect.ignored.ollama.mirostat"]++
			want["dialect.ignored.ollama.other"]++
		} else {
			want["dialect.ignored."+d.name+".cache_prompt"]++
			want["dialect.ignored."+d.name+".other"] += 2
		}
		answer, all := s.ask(t, "POST", d.path, fmt.Sprintf(d.body, fields), "Authorization", "Bearer k")
		if answer.StatusCode != 200 {
			t.Fatalf("%s: %s: %s", d.path, answer.Status, all)
		}
		want["dialect.requests."+d.name]++
		s.ask(t, "POST", d.path, fmt.Sprintf(d.body, "")) // without a key
	}
	s.ask(t, "POST", "/v1/messages", strings.Replace(asksClaude, "%s", "", 1), "X-Api-Key", "k")
	s.ask(t, "POST", "/tokenize", `{"content":"a","user":1}`, "X-Api-Key", "k")
	want["dialect.requests.messages"]++
	want["dialect.ignored.messages.tools[].type"] = 1
	got := map[string]int64{}
	for name, n := range counters.Snapshot() {
		if strings.HasPrefix(name, "dialect.") {
			got[name] = n
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("counted %v\nwant %v", got, want)
	}
}

package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
)

// advisory are fields that clients of other servers send, with values as they send them. None has an effect here.
var advisory = []string{
	// llama.cpp
	`"cache_prompt":true`, `"id_slot":0`, `"slot_id":-1`, `"n_keep":64`, `"n_discard":0`, `"n_probs":0`, `"min_keep":0`, `"typical_p":1.0`,
	`"dynatemp_range":0.5`, `"dynatemp_exponent":1`, `"dry_multiplier":0.8`, `"dry_base":1.75`, `"dry_allowed_length":2`,
	`"dry_sequence_breakers":["\n",":"]`, `"xtc_probability":0.5`, `"xtc_threshold":0.1`, `"mirostat":2`, `"mirostat_tau":5`,
	`"samplers":["top_k","top_p"]`, `"penalize_nl":false`, `"t_max_predict_ms":0`, `"timings_per_token":true`,
	`"return_tokens":true`, `"post_sampling_probs":true`, `"response_fields":["content"]`, `"speculative.n_max":16`,
	`"reasoning_format":"deepseek"`, `"grammar_lazy":false`, `"preserved_tokens":[]`, `"n_indent":0`, `"tfs_z":1`,
	// vLLM, SGLang
	`"min_tokens":0`, `"length_penalty":1.0`, `"early_stopping":false`, `"spaces_between_special_tokens":true`, `"prompt_logprobs":0`,
	`"truncate_prompt_tokens":100`, `"priority":1`, `"request_id":"a"`, `"kv_transfer_params":{"a":[1]}`,
	`"guided_decoding_backend":"xgrammar"`, `"guided_whitespace_pattern":" "`, `"mm_processor_kwargs":{}`, `"return_token_ids":true`,
	`"separate_reasoning":true`, `"stream_reasoning":true`, `"rid":"x"`, `"vllm_xargs":{"a":1}`,
	// Ollama, LM Studio
	`"keep_alive":"5m"`, `"options":{"num_ctx":4096}`, `"ttl":300`, `"draft_model":"x"`, `"context_length":4096`,
	// OpenRouter, LiteLLM
	`"provider":{"order":["a"]}`, `"transforms":["middle-out"]`, `"models":["a","b"]`, `"route":"fallback"`, `"usage":{"include":true}`,
	`"include_reasoning":true`, `"reasoning":{"effort":"low"}`, `"drop_params":true`, `"num_retries":2`, `"timeout":600`, `"caching":true`,
	`"fallbacks":["x"]`, `"litellm_session_id":"x"`, `"tags":["a"]`, `"extra_body":{"a":1}`, `"top_a":0.1`,
	// OpenAI
	`"user":7`, `"user":"me"`, `"safety_identifier":["x"]`, `"prompt_cache_key":{"a":1}`, `"metadata":"text"`, `"store":true`,
	`"service_tier":"priority"`, `"parallel_tool_calls":false`, `"verbosity":"low"`, `"prediction":{"type":"content","content":"x"}`,
	`"prompt_cache_retention":"24h"`, `"stream_options":{"include_usage":true}`,
	// none
	`"foo":1`, `"Temperature":1`, `"":0`, `"a b":"c"`, `"é":true`, `"x\r\nSet-Cookie: a":1`,
}

// TestAdvisoryFields: each is taken, is named in a header, and changes nothing of what the generator is asked.
func TestAdvisoryFields(t *testing.T) {
	var mu sync.Mutex
	var asked tandem.Request
	s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		mu.Lock()
		asked = r
		mu.Unlock()
		return hello(ctx, r, sink)
	}), nil)
	plain := map[string]tandem.Request{}
	for path, body := range withField(`"seed":1`) {
		s.post(t, path, body)
		plain[path] = asked
	}
	for _, field := range advisory {
		for path, body := range withField(`"seed":1,` + field) {
			answer, all := s.ask(t, "POST", path, body)
			if answer.StatusCode != 200 {
				t.Errorf("%s with %s: %s: %s", path, field, answer.Status, all)
				continue
			}
			var names map[string]any
			if err := json.Unmarshal([]byte("{"+field+"}"), &names); err != nil {
				t.Fatal(err)
			}
			for name := range names {
				if got := answer.Header.Values("X-Tandem-Ignored"); len(got) != 1 || got[0] != plainName(name) {
					t.Errorf("%s with %s: header %q", path, field, got)
				}
			}
			if !reflect.DeepEqual(asked, plain[path]) {
				t.Errorf("%s with %s asks for %+v", path, field, asked)
			}
		}
	}
}

// TestIgnoredOnce: each name is in the header once, and in the log once for all requests; both are bounded.
func TestIgnoredOnce(t *testing.T) {
	var out locked
	s := serve(t, script(nil), func(c *Config) { c.Log = slog.New(slog.NewJSONHandler(&out, nil)) })
	const body = `{"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{}}]},` +
		`{"role":"user","id":"1","content":[{"type":"text","text":"a","cache_control":{}},{"type":"text","text":"b","cache_control":{}}]}],"foo":1,"bar":null}`
	for range 2 {
		answer, all := s.ask(t, "POST", "/v1/chat/completions", body)
		if got := answer.Header.Get("X-Tandem-Ignored"); answer.StatusCode != 200 ||
			got != "messages[].content[].cache_control, messages[].id, foo" {
			t.Errorf("%s with %q: %s", answer.Status, got, all)
		}
	}
	if log := out.String(); strings.Count(log, "are ignored") != 1 || strings.Count(log, "cache_control") != 1 {
		t.Errorf("log %s", log)
	}
	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, `,"field %d%s":0`, i, strings.Repeat("x", 500))
	}
	answer, all := s.ask(t, "POST", "/v1/completions", `{"prompt":"a"`+many.String()+`}`)
	if got := answer.Header.Get("X-Tandem-Ignored"); answer.StatusCode != 200 || len(got) > mostIgnored*(mostNameSize+20) ||
		!strings.HasSuffix(got, ", and more") {
		t.Errorf("%s with %d bytes of header: %s", answer.Status, len(got), all)
	}
	for i := range 2 * mostTold {
		s.post(t, "/v1/completions", fmt.Sprintf(`{"prompt":"a","other%d":0}`, i))
	}
	if n := strings.Count(out.String(), "are ignored"); n > mostTold+1 {
		t.Errorf("%d lines about ignored fields: want at most %d", n, mostTold)
	}
	if answer, _ := s.ask(t, "POST", "/v1/completions", `{"prompt":"a","echo":false}`); answer.Header.Get("X-Tandem-Ignored") != "" {
		t.Errorf("nothing is ignored: %q", answer.Header)
	}
}

// TestFieldsOfMeaning: what would change what the answer means is refused by name; values that ask for nothing are taken.
func TestFieldsOfMeaning(t *testing.T) {
	s := serve(t, script(nil), nil)
	for _, tc := range []struct{ field, idle, asks string }{
		{"functions", `[]`, `[{"name":"f"}]`},
		{"tool_choice", `"auto"`, `"required"`},
		{"function_call", `"none"`, `{"name":"f"}`},
		{"response_format", `{"type":"text"}`, `{"type":"grammar"}`},
		{"grammar", `""`, `"root ::= \"a\""`},
		{"guided_grammar", `false`, `"x"`},
		{"guided_something_new", `""`, `1`},
		{"ebnf", `""`, `"a"`}, {"format", `""`, `"json"`},
		{"logits_processors", `[]`, `["x"]`},
		{"bad_words", `[]`, `["x"]`}, {"banned_strings", `[]`, `["x"]`}, {"custom_token_bans", `""`, `"1,2"`},
		{"allowed_token_ids", `[]`, `[1]`}, {"stop_token_ids", `[]`, `[1]`},
		{"images", `[]`, `["aGk="]`}, {"image_data", `[]`, `[{"id":1}]`}, {"system", `""`, `"Speak like a pirate."`},
		{"documents", `[]`, `[{"text":"x"}]`}, {"template", `""`, `"{{ .Prompt }}"`}, {"chat_template", `""`, `"{{ x }}"`},
		{"lora", `[]`, `[{"id":0,"scale":1}]`}, {"lora_request", `{}`, `{"lora_name":"x"}`}, {"plugins", `[]`, `[{"id":"web"}]`},
		{"modalities", `["text"]`, `["text","audio"]`}, {"echo", `false`, `true`}, {"use_beam_search", `false`, `true`},
		{"add_generation_prompt", `true`, `false`}, {"continue_final_message", `false`, `true`},
		{"skip_special_tokens", `true`, `false`}, {"include_stop_str_in_output", `false`, `true`},
		{"previous_response_id", `""`, `"resp_1"`}, {"thread", `{}`, `{"type":"create"}`},
	} {
		for path := range withField("") {
			code := "unsupported_value"
			ofChats := []string{"tool_choice", "add_generation_prompt", "continue_final_message"}
			if path == "/v1/chat/completions" && slices.Contains(ofChats, tc.field) {
				code = "invalid_value" // without tools, and without a beginning of the answer
			}
			for value, status := range map[string]int{"null": 200, tc.idle: 200, tc.asks: 400} {
				answer, all := s.ask(t, "POST", path, withField(fmt.Sprintf("%q:%s", tc.field, value))[path])
				if answer.StatusCode != status || answer.Header.Get("X-Tandem-Ignored") != "" {
					t.Errorf("%s with %s %s: %s, ignored %q: %s", path, tc.field, value, answer.Status,
						answer.Header.Get("X-Tandem-Ignored"), all)
				}
				if status != 200 {
					if p := refusal(t, answer, all); p.Param != tc.field || p.Code != code ||
						!strings.Contains(p.Message, tc.field) {
						t.Errorf("%s with %s %s: %+v", path, tc.field, value, p)
					}
				}
			}
		}
	}
}

// TestSentBack: a conversation may hold what other servers put into their answers.
func TestSentBack(t *testing.T) {
	s := serve(t, script(nil), nil)
	for message, want := range map[string]string{
		`{"role":"assistant","content":"a","refusal":null,"audio":null,"function_call":null,"tool_calls":null,"annotations":null}`: "assistant: a",
		`{"role":"assistant","content":"a","refusal":"","annotations":[{"type":"url_citation"}],"tool_calls":[]}`:                  "assistant: a",
		`{"role":"assistant","content":null,"refusal":"I must not."}`:                                                              "assistant: I must not.",
		`{"role":"assistant","content":"a","reasoning":"I think","reasoning_details":[{"type":"reasoning.text"}]}`:                 "assistant: a",
		`{"role":"assistant","content":"a","reasoning_content":"I think","thinking":"I think","thinking_blocks":[]}`:               "assistant: a",
		`{"role":"assistant","content":"a","reasoning":null,"reasoning_content":null,"provider_specific_fields":{"x":1}}`:          "assistant: a",
		`{"role":"assistant","content":"a","reasoning":{"x":1}}`:                                                                   "assistant: a",
		`{"content":null,"role":"assistant"}`:                                                                                      "assistant: ",
		`{"role":"assistant","content":null,"reasoning_content":"hm"}`:                                                             "assistant: ",
		`{"role":"tool","content":null,"tool_call_id":"1"}`:                                                                        "tool: ",
		`{"role":"user","content":"a","cache_control":{"type":"ephemeral"},"id":"msg_1","timestamp":7}`:                            "user: a",
		`{"role":"user","name":null,"content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}`:                  "user: a",
		`{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"text","text":""}]}`:              "user: a\nb\n",
		`{"role":"user","content":[{"type":"text","text":"a","annotations":[]},{"type":"text","text":null}]}`:                      "user: a\n",
		`{"role":"user","content":["a","b"]}`:                                                                                      "user: a\nb",
		`{"role":"user","content":[{"text":"a"},{"type":"input_text","text":"b"}]}`:                                                "user: a\nb",
		`{"role":"user","content":[]}`: "user: ",
		`{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"text","text":"a"}]}`: "assistant: a",
		`{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}`:                                              "assistant: no",
	} {
		answer, all := s.ask(t, "POST", "/apply-template", `{"messages":[`+message+`]}`)
		if answer.StatusCode != 200 || object(t, all)["prompt"] != want+"\n" {
			t.Errorf("%s: %s: %s, want %q", message, answer.Status, all, want)
		}
	}
}

// TestToTheEnd: without a limit, or with -1, an answer goes on to the end of the context; above it, a limit is cut.
func TestToTheEnd(t *testing.T) {
	s := serve(t, script(nil), func(c *Config) { c.Defaults.MaxTokens = 0 })
	for _, field := range []string{`"n":1`, `"max_tokens":null`, `"max_tokens":-1`, `"max_completion_tokens":-1`, `"n_predict":-1`, `"n_predict":-2`,
		`"max_tokens":32000`} {
		for path, body := range withField(field) {
			usage := s.post(t, path, body)["usage"].(map[string]any)
			if usage["total_tokens"] != float64(context1) {
				t.Errorf("%s with %s: %v, want %d tokens in all", path, field, usage, context1)
			}
		}
	}
	for field, want := range map[string]float64{`"n_predict":3`: 3, `"max_new_tokens":4`: 4, `"max_tokens":5.0,"max_completion_tokens":5`: 5} {
		for path, body := range withField(field) {
			if usage := s.post(t, path, body)["usage"].(map[string]any); usage["completion_tokens"] != want {
				t.Errorf("%s with %s: %v", path, field, usage)
			}
		}
	}
	if p := s.refused(t, "POST", "/v1/completions", `{"prompt":"a","n_predict":3,"max_tokens":4}`); p.status != 400 {
		t.Errorf("two limits: %+v", p)
	}
}

// TestSamplingValues: seeds with a sign, top_p 0, and other servers' names of penalties and stops reach the generator.
func TestSamplingValues(t *testing.T) {
	var asked tandem.Request
	s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		asked = r
		return hello(ctx, r, sink)
	}), nil)
	ask := func(field string) tandem.Request {
		t.Helper()
		s.post(t, "/v1/completions", `{"prompt":"a","temperature":1,`+field+`}`)
		return asked
	}
	low := int64(math.MinInt64)
	for field, want := range map[string]uint64{`"seed":-9223372036854775808`: uint64(low), `"seed":1.0`: 1, `"seed":-3.0`: math.MaxUint64 - 2,
		`"seed":9223372036854775807`: math.MaxInt64, `"seed":18446744073709551615`: math.MaxUint64} {
		if got := ask(field).Sampling.Seed; got != want {
			t.Errorf("%s asks for %d", field, got)
		}
	}
	if a, b := ask(`"seed":-1`).Sampling.Seed, ask(`"seed":-1.0`).Sampling.Seed; a == b || a == math.MaxUint64 {
		t.Errorf("seed -1 is %d, then %d: want random ones", a, b)
	}
	if p := ask(`"top_p":0,"top_k":40`).Sampling; p.TopK != 1 || p.TopP != 1 {
		t.Errorf("top_p 0 asks for %+v: want the likeliest token", p)
	}
	if p := ask(`"repetition_penalty":1.25`).Sampling; p.RepeatPenalty != 1.25 || p.RepeatLast != 4096 {
		t.Errorf("repetition_penalty asks for %+v", p)
	}
	if p := ask(`"repetition_penalty":1.25,"repeat_last_n":7`).Sampling; p.RepeatPenalty != 1.25 || p.RepeatLast != 7 {
		t.Errorf("repetition_penalty with a window asks for %+v", p)
	}
	for field, want := range map[string]string{`"stop":""`: "[]", `"stop":[""]`: "[]", `"stop":["",null,"a","a"]`: "[a]", `"stop_sequences":["b"]`: "[b]"} {
		if got := fmt.Sprint(ask(field).Stop); got != want {
			t.Errorf("%s asks for %s", field, got)
		}
	}
	if got := len(ask(`"stop":` + stops(64)).Stop); got != 64 {
		t.Errorf("%d of 64 stops", got)
	}
}

// TestModelNames: any name is answered by the one model, which says its own; aliases are listed.
func TestModelNames(t *testing.T) {
	s := serve(t, script(nil), func(c *Config) { c.Model.Aliases = []string{"gpt-4o", "org/a b", "gopher"} })
	for _, name := range []string{"gpt-4o", "anything", "", "gopher"} {
		if got := s.post(t, "/v1/completions", fmt.Sprintf(`{"prompt":"a","model":%q}`, name))["model"]; got != "gopher" {
			t.Errorf("asked as %q it says %v", name, got)
		}
	}
	_, all := s.ask(t, "GET", "/v1/models", "")
	var list struct{ Data []struct{ ID string } }
	if err := json.Unmarshal([]byte(all), &list); err != nil || fmt.Sprint(list.Data) != "[{gopher} {gpt-4o} {org/a b}]" {
		t.Errorf("models %s, %v", all, err)
	}
	if answer, all := s.ask(t, "GET", "/v1/models/org/a%20b", ""); answer.StatusCode != 200 || object(t, all)["id"] != "org/a b" {
		t.Errorf("an alias by itself: %s", all)
	}
	strict := serve(t, script(nil), func(c *Config) { c.Strict, c.Model.Aliases = true, []string{"gpt-4o"} })
	for name, status := range map[string]int{"gpt-4o": 200, "gopher": 200, "other": 404} {
		if answer, all := strict.ask(t, "POST", "/v1/completions", fmt.Sprintf(`{"prompt":"a","model":%q}`, name)); answer.StatusCode != status {
			t.Errorf("strict, asked as %q: %s", name, all)
		}
	}
	for _, name := range []string{"", "a\nb", strings.Repeat("x", 257)} {
		if _, err := New(Config{Listen: "127.0.0.1:0", Generator: script(nil), Model: Model{Name: "m", Aliases: []string{name}},
			Limits: limits,
			Vocab:  alphabet{}}); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("alias %q: %v", name, err)
		}
	}
}

// TestCreated: the time of a model whose file has none is that of the start, never negative.
func TestCreated(t *testing.T) {
	s := serve(t, script(nil), func(c *Config) { c.Model = Model{Name: "shipped"} })
	for _, path := range []string{"/v1/models", "/v1/models/shipped"} {
		_, all := s.ask(t, "GET", path, "")
		var m struct {
			Created uint64
			Data    []struct{ Created uint64 }
		}
		if err := json.Unmarshal([]byte(all), &m); err != nil || m.Created == 0 && m.Data[0].Created == 0 {
			t.Errorf("%s: %s, %v", path, all, err)
		}
	}
}

// TestNoEscapes: answers hold the characters of markup as they are.
func TestNoEscapes(t *testing.T) {
	s := serve(t, script(nil), nil)
	for path, body := range map[string]string{"/detokenize": `{"tokens":[60,62,38]}`, "/tokenize": `{"content":"<&>","with_pieces":true}`,
		"/apply-template": `{"messages":[{"role":"user","content":"<b>&</b>"}]}`, "/v1/chat/completions": `{"messages":[{"role":"<&>","content":"a"}]}`} {
		if _, all := s.ask(t, "POST", path, body); strings.Contains(all, `\u00`) || !strings.Contains(all, "<") {
			t.Errorf("%s: %s", path, all)
		}
	}
}

// FuzzRequests sends any body to every call: what comes back is an answer or a refusal, never an internal error.
func FuzzRequests(f *testing.F) {
	paths := []string{"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template"}
	for i, field := range advisory {
		for _, body := range withField(field) {
			f.Add(uint8(i), []byte(body))
		}
	}
	f.Add(uint8(3), []byte(`{"tokens":[1,299]}`))
	c, err := Config{Generator: script(nil), Model: Model{Name: "m"}, Defaults: testDefaults, Limits: limits, Vocab: alphabet{},
		Chat: lines{}}.withDefaults()
	if err != nil {
		f.Fatal(err)
	}
	s := newServer(c, anyHost)
	f.Fuzz(func(t *testing.T, at uint8, body []byte) {
		path := paths[int(at)%len(paths)]
		answer := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
		s.handler.ServeHTTP(answer, r)
		if answer.Code >= 500 {
			t.Fatalf("%s with %q: %d: %s", path, body, answer.Code, answer.Body)
		}
		if answer.Code != 200 {
			refusal(t, answer.Result(), answer.Body.String())
		}
	})
}

package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/services/public/access"
)

// withField returns a body of each kind with a field.
func withField(field string) map[string]string {
	return map[string]string{
		"/v1/completions":      `{"prompt":"ab",` + field + `}`,
		"/v1/chat/completions": `{"messages":[{"role":"user","content":"ab"}],` + field + `}`,
	}
}

// TestNumbers sets each numeric field to min-1, min, max, max+1, NaN and text.
func TestNumbers(t *testing.T) {
	t.Parallel()
	s := serve(t, script(nil), nil)
	speculation := func(name string) string { return `"speculation":{"` + name + `":%s}` }
	type numeric struct {
		param, field string // field with %s for the value
		good, bad    []string
		only         string // the path that has it, "" for both
	}
	both := []numeric{
		{"max_tokens", `"max_tokens":%s`, []string{"1", "1.0", "4.0", "1e1", "2147483647", "-1", "-2", "-1.0"}, []string{"0", "-3",
			"2147483648", "1e99", "1e999", "1.5"}, ""},
		{"n_predict", `"n_predict":%s`, []string{"1", "4.0", "-1", "-2"}, []string{"0", "-3", "1.5"}, ""},
		{"temperature", `"temperature":%s`, []string{"0", "-0", "100", "0.7", "1e-39", "5e-324"}, []string{"-1", "-0.001", "101", "1e999"}, ""},
		{"top_p", `"top_p":%s`, []string{"0", "0.0", "-0", "0.001", "1", "5e-324"}, []string{"-1", "1.001", "2"}, ""},
		{"min_p", `"min_p":%s`, []string{"0", "1", "5e-324"}, []string{"-1", "1.5", "2"}, ""},
		{"top_k", `"top_k":%s`, []string{"0", "1", "-1", "-1.0", "4e1", "2147483647"}, []string{"-2", "2147483648", "0.5"}, ""},
		{"seed", `"seed":%s`, []string{"0", "18446744073709551615", "-1", "-9223372036854775808", "1.0",
			"-7.0", "1e3"}, []string{"-9223372036854775809", "18446744073709551616", "1.5", "1e20", "1e999"}, ""},
		{"repeat_penalty", `"repeat_penalty":%s`, []string{"0", "0.01", "1", "10"}, []string{"-1", "11", "0.009", "1e-39", "5e-324"}, ""},
		{"accept_epsilon", `"accept":"typical","accept_epsilon":%s`, []string{"0", "1"}, []string{"-1", "2"}, ""},
		{"accept_delta", `"accept":"typical","accept_delta":%s`, []string{"0", "1"}, []string{"-1", "2"}, ""},
		{"repeat_last_n", `"repeat_last_n":%s`, []string{"0", "-1", "0.0", "4096"}, []string{"-2", "4097"}, ""},
		{"frequency_penalty", `"frequency_penalty":%s`, []string{"-2", "2"}, []string{"-3", "3", "2.001"}, ""},
		{"presence_penalty", `"presence_penalty":%s`, []string{"-2", "2"}, []string{"-3", "3"}, ""},
		{"n", `"n":%s`, []string{"1", "16"}, []string{"0", "-1", "17"}, ""},
		{"logit_bias", `"logit_bias":{"1":%s}`, []string{"-100", "100", "0.5"}, []string{"-101", "101"}, ""},
		{"logit_bias", `"logit_bias":{"%s":1}`, []string{"0", "299"}, []string{"-1", "300", "01", "1.5", "2147483648", "x"}, ""},
		{"top_logprobs", `"logprobs":true,"top_logprobs":%s`, []string{"0", "20"}, []string{"-1", "21"}, "/v1/chat/completions"},
		{"logprobs", `"logprobs":%s`, []string{"0", "20"}, []string{"-1", "21", "0.5"}, "/v1/completions"},
		{"repetition_penalty", `"repetition_penalty":%s`, []string{"0", "1", "1.1", "10"}, []string{"-1", "11"}, ""},
		{"max_completion_tokens", `"max_completion_tokens":%s`, []string{"1", "2147483647", "-1"}, []string{"0", "2147483648"},
			"/v1/chat/completions"},
		{"best_of", `"best_of":%s`, []string{"1"}, []string{"0", "2", "21"}, "/v1/completions"},
		{"speculation.max_nodes", speculation("max_nodes"), []string{"2", "256"}, []string{"1", "0", "-1", "257"}, ""},
		{"speculation.max_width", speculation("max_width"), []string{"2", "256"}, []string{"1", "0", "-1", "257"}, ""},
		{"speculation.max_depth", speculation("max_depth"), []string{"1", "64"}, []string{"0", "-1", "65"}, ""},
		{"speculation.max_branches", speculation("max_branches"), []string{"1", "64"}, []string{"0", "-1", "65"}, ""},
	}
	for _, n := range both {
		// the JSON of a number that is none
		wrong := []string{`"hot"`, `"1"`, `true`, `[]`, `{}`}
		if strings.Contains(n.field, `"%s"`) {
			wrong = []string{"NaN", "", "hot"}
		}
		for path, body := range withField(n.field) {
			if n.only != "" && n.only != path {
				continue
			}
			for _, v := range n.good {
				if answer, all := s.ask(t, "POST", path, fmt.Sprintf(body, v)); answer.StatusCode != 200 {
					t.Errorf("%s %s of %s: %s: %s", path, n.param, v, answer.Status, all)
				}
			}
			for _, v := range append(wrong, n.bad...) {
				if n.param == "logprobs" && v == "true" {
					continue
				}
				p := s.refused(t, "POST", path, fmt.Sprintf(body, v))
				if p.status != 400 || p.Type != "invalid_request_error" || p.Param != n.param && !strings.HasPrefix(p.Param, n.param+".") {
					t.Errorf("%s %s of %s: %+v", path, n.param, v, p)
				}
				if name := n.param[strings.LastIndexByte(n.param, '.')+1:]; v != "" && v != "0" && !strings.Contains(p.Message, name) &&
					!strings.Contains(p.Message, "tree") {
					t.Errorf("%s %s of %s: message %q does not name it", path, n.param, v, p.Message)
				}
			}
			if !strings.Contains(n.field, `"%s"`) { // no JSON at all
				for _, v := range []string{"NaN", "Infinity", "0x10", "+1", "01", "1.", "--1"} {
					if p := s.refused(t, "POST", path, fmt.Sprintf(body, v)); p.status != 400 || !strings.Contains(p.Message, "at byte") {
						t.Errorf("%s %s of %s: %+v: want the place in the body", path, n.param, v, p)
					}
				}
			}
		}
	}
}

// TestStrictFields sends a server with strict fields some that are refused by name, and some that change nothing and are accepted.
func TestStrictFields(t *testing.T) {
	s := serve(t, script(nil), func(c *Config) { c.Strict = true })
	const chat, completion, any = "/v1/chat/completions", "/v1/completions", ""
	for _, tc := range []struct {
		path, field string
		param       string // "" = accepted
	}{
		{any, `"foo":1`, "foo"},
		{any, `"Temperature":1`, "Temperature"},
		{any, `"model":"gopher"`, ""},
		{any, `"model":7`, "model"},
		{any, `"response_format":{"type":"text"}`, ""},
		{any, `"response_format":{"type":"json_schema","json_schema":{}}`, "response_format.json_schema.schema"},
		{any, `"response_format":null`, ""},
		{any, `"stop":"x"`, ""},
		{any, `"stop":["a","b","c","d"]`, ""},
		{any, `"stop":[]`, ""},
		{any, `"stop":` + stops(64), ""},
		{any, `"stop":` + stops(65), "stop"},
		{any, `"stop":""`, ""},
		{any, `"stop":[""]`, ""},
		{any, `"stop":["",null,"a"]`, ""},
		{any, `"stop":[1]`, "stop[0]"},
		{any, `"stop":7`, "stop"},
		{any, `"stop":"` + strings.Repeat("x", 257) + `"`, "stop"},
		{any, `"user":"me"`, ""},
		{any, `"user":"` + strings.Repeat("x", 513) + `"`, "user"},
		{any, `"metadata":{"a":"b"}`, ""},
		{any, `"safety_identifier":"me","prompt_cache_key":"k"`, ""},
		{any, `"stream":"yes"`, "stream"},
		{any, `"stream_options":{"include_usage":true}`, "stream_options"},
		{any, `"stream":true,"stream_options":{"foo":true}`, "stream_options.foo"},
		{any, `"stream":true,"stream_options":{"include_obfuscation":false}`, ""},
		{any, `"stream":true,"stream_options":{"include_obfuscation":true}`, "stream_options.include_obfuscation"},
		{any, `"temperature":1,"temperature":2`, "temperature"},
		{any, `"temperature":null`, ""},
		{any, `"logit_bias":{"1":1,"1":2}`, "logit_bias.1"},
		{any, `"logit_bias":[]`, "logit_bias"},
		{any, `"ignore_eos":true`, ""},
		{any, `"ignore_eos":1`, "ignore_eos"},
		{any, `"speculation":{"enabled":false}`, ""},
		{any, `"speculation":{"enabled":"no"}`, "speculation.enabled"},
		{any, `"speculation":{"strategy":"magic"}`, "speculation.strategy"},
		{any, `"speculation":{"strategy":"minions","vote":"tree","drafters":["go","py"],"without":["ahead"]}`, ""},
		{any, `"speculation":{"vote":"x"}`, "speculation.vote"},
		{any, `"speculation":{"drafter":"go"}`, ""},
		{any, `"speculation":{"drafter":"go","drafters":["py"]}`, "speculation.drafter"},
		{any, `"speculation":{"drafters":["go","go"]}`, "speculation.drafters"},
		{any, `"speculation":{"without":["x"]}`, "speculation.without"},
		{any, `"speculation":{"max_width":0,"max_depth":0,"max_branches":0}`, "speculation.max_width"},
		{any, `"speculation":{"max_nodes":0,"max_depth":0,"max_branches":0}`, "speculation.max_nodes"},
		{any, `"speculation":{"max_nodes":8,"max_width":9}`, "speculation.max_width"},
		{any, `"speculation":{"max_width":9,"max_nodes":8}`, "speculation.max_nodes"},
		{any, `"speculation":{"foo":0}`, "speculation.foo"},
		{any, `"speculation":[]`, "speculation"},
		{any, `"guided_json":{}`, "guided_json"},
		{any, `"cache_prompt":true`, "cache_prompt"},
		{any, `"n_predict":4`, "n_predict"},
		{any, `"model":"gpt-4"`, "model"},
		{chat, `"max_tokens":2,"max_completion_tokens":2`, ""},
		{chat, `"max_tokens":2,"max_completion_tokens":3`, "max_completion_tokens"},
		{chat, `"top_logprobs":2`, "top_logprobs"},
		{chat, `"logprobs":1`, "logprobs"},
		{chat, `"tools":[]`, ""},
		{chat, `"tools":[{"type":"web_search"}]`, "tools"},
		{chat, `"tools":[{"type":"function"}]`, "tools[0].function"},
		{chat, `"tools":[{"type":"function","function":{"parameters":{}}}]`, "tools[0].function.name"},
		{chat, `"tools":[1]`, "tools[0]"},
		{chat, `"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"maybe"`, "tool_choice"},
		{chat, `"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}}`, "tool_choice"},
		{chat, `"continue_final_message":true`, "continue_final_message"},
		{chat, `"tool_choice":"none","parallel_tool_calls":true`, ""},
		{chat, `"tool_choice":"required"`, "tool_choice"},
		{chat, `"functions":[{}]`, "functions"},
		{chat, `"store":false`, ""},
		{chat, `"store":true`, "store"},
		{chat, `"modalities":["text"]`, ""},
		{chat, `"modalities":["text","audio"]`, "modalities"},
		{chat, `"audio":{"voice":"a"}`, "audio"},
		{chat, `"audio":null`, ""},
		{chat, `"reasoning_effort":"high"`, "reasoning_effort"},
		{chat, `"service_tier":"auto"`, ""},
		{chat, `"service_tier":"priority"`, "service_tier"},
		{chat, `"echo":false`, "echo"},
		{chat, `"prompt":"x"`, "prompt"},
		{completion, `"echo":false`, ""},
		{completion, `"echo":true`, "echo"},
		{completion, `"suffix":""`, ""},
		{completion, `"suffix":"x"`, ""},
		{completion, `"suffix":null`, ""},
		{completion, `"n":2,"best_of":2`, ""},
		{completion, `"n":2,"best_of":1`, "best_of"},
		{completion, `"max_completion_tokens":3`, "max_completion_tokens"},
		{completion, `"tools":[]`, "tools"},
		{completion, `"messages":[]`, "messages"},
	} {
		for path, body := range withField(tc.field) {
			if tc.path != "" && tc.path != path {
				continue
			}
			answer, all := s.ask(t, "POST", path, body)
			if tc.param == "" {
				if answer.StatusCode != 200 {
					t.Errorf("%s with %s: %s: %s", path, tc.field, answer.Status, all)
				}
				continue
			}
			if p := refusal(t, answer, all); p.status != 400 && p.Code != "model_not_found" || p.Param != tc.param {
				t.Errorf("%s with %s: %+v, want param %q", path, tc.field, p, tc.param)
			}
		}
	}
}

// stops returns an array of n stop sequences.
func stops(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%q", fmt.Sprint("stop ", i))
	}
	return "[" + strings.Join(all, ",") + "]"
}

// TestPromptsAndMessages sends prompts and conversations in all their forms.
func TestPromptsAndMessages(t *testing.T) {
	s := serve(t, script(nil), nil)
	long := strings.Repeat("x", context1-1) // with the token that begins a text it fills the context
	for _, tc := range []struct {
		path, body, param, code string
		status                  int
	}{
		{"/v1/completions", `{"prompt":"` + long[1:] + `"}`, "", "", 200},
		{"/v1/completions", `{"prompt":"` + long + `"}`, "prompt", "context_length_exceeded", 400},
		{"/v1/completions", `{"prompt":["a","` + long + `"]}`, "prompt", "context_length_exceeded", 400},
		{"/v1/completions", `{"prompt":[` + strings.Repeat("1,", context1-1) + `1]}`, "prompt", "context_length_exceeded", 400},
		{"/v1/completions", `{"prompt":"\\ud83d \ud83d\ude00 \u00e9"}`, "", "", 200},
		{"/v1/completions", `{"prompt":[[1,2],[3]]}`, "", "", 200},
		{"/v1/completions", `{"prompt":[1,2]}`, "", "", 200},
		{"/v1/completions", `{"prompt":[1,300]}`, "prompt", "invalid_value", 400},
		{"/v1/completions", `{"prompt":[1,-1]}`, "prompt", "invalid_value", 400},
		{"/v1/completions", `{"prompt":[1,"a"]}`, "prompt[1]", "invalid_value", 400},
		{"/v1/completions", `{"prompt":[1.5]}`, "prompt[0]", "invalid_value", 400},
		{"/v1/completions", `{"prompt":[[1],[]]}`, "prompt", "invalid_value", 400},
		{"/v1/completions", `{"prompt":[true]}`, "prompt[0]", "invalid_value", 400},
		{"/v1/completions", `{"prompt":[]}`, "prompt", "invalid_value", 400},
		{"/v1/completions", `{"prompt":""}`, "prompt", "invalid_value", 400},
		{"/v1/completions", `{"prompt":7}`, "prompt", "invalid_value", 400},
		{"/v1/completions", `{"prompt":null}`, "prompt", "invalid_value", 400},
		{"/v1/completions", `{}`, "prompt", "invalid_value", 400},
		{"/v1/completions", `{"prompt":["a"` + strings.Repeat(`,"a"`, 16) + `]}`, "prompt", "invalid_value", 400},
		{"/v1/completions", `{"prompt":["a","b"],"n":9}`, "n", "invalid_value", 400},
		{"/v1/completions", `{"prompt":"a","model":"gpt-4"}`, "", "", 200},
		{"/v1/chat/completions", `{}`, "messages", "invalid_value", 400},
		{"/v1/chat/completions", `{"messages":[]}`, "messages", "invalid_value", 400},
		{"/v1/chat/completions", `{"messages":{}}`, "messages", "invalid_value", 400},
		{"/v1/chat/completions", `{"messages":[{"role":"user"}]}`, "messages[0].content", "invalid_value", 400},
		{"/v1/chat/completions", `{"messages":[{"content":"a"}]}`, "messages[0].role", "invalid_value", 400},
		{"/v1/chat/completions", `{"messages":[{"role":"king","content":"a"}]}`, "messages[0].role", "invalid_value", 400},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":null}]}`, "messages[0].content", "invalid_value", 400},
		{"/v1/chat/completions", `{"messages":[{"content":null,"role":"user"}]}`, "messages[0].content", "invalid_value", 400},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a","foo":1}]}`, "", "", 200},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a","images":["x"]}]}`, "messages[0].images", "unsupported_value", 400},
		{"/v1/chat/completions", `{"messages":[{"role":"assistant","content":null,"function_call":{"name":"f"}}]}`,
			"messages[0].function_call", "unsupported_value", 400},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`,
			"messages[0].content[0].type", "unsupported_value", 400},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"input_audio","input_audio":{}}]}]}`,
			"messages[0].content[1].type", "unsupported_value", 400},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text"}]}]}`, "messages[0].content[0]", "invalid_value",
			400},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a","tool_calls":[{}]}]}`, "messages[0].tool_calls",
			"invalid_value", 400},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"refuse"}]}`, "messages", "invalid_value", 400},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"loop"}]}`, "messages", "invalid_value", 400},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"` + long + `"}]}`, "messages", "context_length_exceeded", 400},
		{"/v1/chat/completions", `{"messages":[{"role":"system","content":"a"},{"role":"user","name":"b","content":"c"},` +
			`{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function"}],"refusal":null,"annotations":[]},{"role":"tool","tool_call_id":"1","content":"d"}]}`, "", "", 200},
		{"/tokenize", `{}`, "content", "invalid_value", 400},
		{"/tokenize", `{"content":1}`, "content", "invalid_value", 400},
		{"/tokenize", `{"content":"a","foo":1,"add_special":null}`, "", "", 200},
		{"/detokenize", `{"tokens":[300]}`, "tokens", "invalid_value", 400},
		{"/detokenize", `{"tokens":["a"]}`, "tokens[0]", "invalid_value", 400},
		{"/apply-template", `{"messages":[]}`, "messages", "invalid_value", 400},
	} {
		answer, all := s.ask(t, "POST", tc.path, tc.body)
		if tc.status == 200 {
			if answer.StatusCode != 200 {
				t.Errorf("%s %.100s: %s: %s", tc.path, tc.body, answer.Status, all)
			}
			continue
		}
		if p := refusal(t, answer, all); p.status != tc.status || p.Param != tc.param || p.Code != tc.code {
			t.Errorf("%s %.100s: %+v, want %d %s %s", tc.path, tc.body, p, tc.status, tc.param, tc.code)
		}
	}
}

// TestBodies sends what is no JSON object in UTF-8 of a size that is read.
func TestBodies(t *testing.T) {
	t.Parallel()
	s := serve(t, script(nil), func(c *Config) { c.MaxBody = 1 << 20 })
	for _, tc := range []struct {
		name, body, says string
		status           int
	}{
		{"nothing", ``, "empty", 400},
		{"white space", " \n", "empty", 400},
		{"null", `null`, "null: want a JSON object", 400},
		{"an array", `[]`, "an array", 400},
		{"a text", `hello`, `the body is not JSON: it begins with "h" at byte 0: want an object, such as {"prompt": "hello"}`, 400},
		{"words", `not json`, `the body is not JSON: it begins with "no" at byte 0: want an object`, 400},
		{"a form", `prompt=hi`, `the body is not JSON: it begins with "p" at byte 0`, 400},
		{"a byte order mark", "\ufeff{}", "the body is not JSON: it begins with a byte order mark", 400},
		{"Python's quotes", `{'prompt': 'a'}`, `the body is not JSON: found '\'' at byte 1, want the name of a field in double quotes`, 400},
		{"Python's None", `{"prompt": None}`, `the body is not JSON: found "N" at byte 11, want a value`, 400},
		{"a wrong word", `{"prompt": nul}`, `the body is not JSON: found "nul}" at byte 11, want a value`, 400},
		{"two values", `{"prompt": "a" "b"}`, `the body is not JSON: found '"' at byte 15, want a comma or '}'`, 400},
		{"cut off", `{"prompt":"a`, "ends at byte 12", 400},
		{"a comma too many", `{"prompt":"a",}`, "at byte 14", 400},
		{"two objects", `{"prompt":"a"}{}`, "at byte 14", 400},
		{"bytes that are no text", "{\"prompt\":\"a\xff\"}", "UTF-8 at byte 12", 400},
		{"half a character", "{\"prompt\":\"a\xc3\"}", "UTF-8 at byte 12", 400},
		{"a control character", "{\"prompt\":\"a\x01\"}", "at byte 12", 400},
		{"half a character, escaped", `{"prompt":"a\ud83d"}`, "half a character at byte 12", 400},
		{"its other half", `{"prompt":"\\\ude00\ud83d"}`, "half a character at byte 13", 400},
		{"deep arrays", `{"prompt":` + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + `}`, "more than 512 deep at byte 521",
			400},
		{"deep objects", strings.Repeat(`{"prompt":`, 1000) + "1" + strings.Repeat("}", 1000), "more than 512 deep", 400},
		{"too many bytes", `{"prompt":"` + strings.Repeat("x", 1<<20) + `"}`, "more than 1048576 bytes", 413},
		{"too many fields", `{"prompt":"a","logit_bias":{` + manyFields(1025) + `}}`, "more than 1024 fields", 400},
	} {
		for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template"} {
			if tc.name == "too many fields" && path != "/v1/completions" {
				continue
			}
			p := s.refused(t, "POST", path, tc.body)
			if p.status != tc.status || !strings.Contains(p.Message, tc.says) {
				t.Errorf("%s: %s: %d %q, want %d with %q", path, tc.name, p.status, p.Message, tc.status, tc.says)
			}
		}
	}
}

func manyFields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `%s"%d":0`, strings.Repeat(",", min(i, 1)), i)
	}
	return b.String()
}

// TestAccess sends requests that may not be made.
func TestAccess(t *testing.T) {
	keys, err := access.New([]string{"k-1", "k-2"})
	if err != nil {
		t.Fatal(err)
	}
	open := serve(t, script(nil), func(c *Config) {
		c.Page = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "page "+r.URL.Path) })
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "metrics") })
	})
	keyed := serve(t, script(nil), func(c *Config) {
		c.Keys = keys
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "metrics") })
	})
	const body = `{"prompt":"a"}`
	for _, tc := range []struct {
		site                *site
		method, path        string
		headers             []string
		status              int
		code                string
		allow, authenticate string
	}{
		{site: open, method: "POST", path: "/v1/completions", status: 200},
		{site: open, method: "POST", path: "/v1/completions", headers: []string{"Authorization", "Bearer whatever"}, status: 200},
		{site: open, method: "POST", path: "/v1/completions", headers: []string{"Content-Type", "application/x-www-form-urlencoded"},
			status: 200},
		{site: open, method: "POST", path: "/v1/completions", headers: []string{"Content-Type", "application/json; charset=utf-8"},
			status: 200},
		{site: open, method: "POST", path: "/v1/completions", headers: []string{"Content-Type", "multipart/form-data; boundary=x"},
			status: 415, code: "unsupported_media_type"},
		{site: open, method: "POST", path: "/v1/completions", headers: []string{"Content-Encoding", "gzip"}, status: 415,
			code: "unsupported_media_type"},
		{site: open, method: "POST", path: "/v1/completions", headers: []string{"Host", "evil.example"}, status: 403,
			code: "host_not_allowed"},
		{site: open, method: "GET", path: "/readyz", headers: []string{"Host", "evil.example:8450"}, status: 403, code: "host_not_allowed"},
		{site: open, method: "GET", path: "/readyz", headers: []string{"Host", "LOCALHOST:8450"}, status: 200},
		{site: open, method: "GET", path: "/readyz", headers: []string{"Host", "[::1]:8450"}, status: 200},
		{site: open, method: "POST", path: "/v1/completions", headers: []string{"Origin", "http://evil.example"}, status: 403,
			code: "cross_origin"},
		{site: open, method: "POST", path: "/v1/completions", headers: []string{"Sec-Fetch-Site", "cross-site"}, status: 403,
			code: "cross_origin"},
		{site: open, method: "POST", path: "/v1/completions", headers: []string{"Sec-Fetch-Site", "same-origin"}, status: 200},
		{site: open, method: "OPTIONS", path: "/v1/completions", headers: []string{"Origin", "http://evil.example",
			"Access-Control-Request-Method", "POST"}, status: 403, code: "cross_origin"},
		{site: open, method: "POST", path: "/v1/completions/", status: 200},
		{site: open, method: "POST", path: "/completions", status: 200},
		{site: open, method: "POST", path: "//v1/completions", status: 200},
		{site: open, method: "GET", path: "/v1/models/", status: 200},
		{site: open, method: "GET", path: "/models", status: 200},
		{site: open, method: "GET", path: "/models/gopher", status: 200},
		{site: open, method: "GET", path: "/health/", status: 200},
		{site: open, method: "GET", path: "/v1", status: 404, code: "unknown_url"},
		{site: open, method: "GET", path: "/v1/healthz", status: 404, code: "unknown_url"},
		{site: open, method: "GET", path: "/v1/completions", status: 405, code: "method_not_allowed", allow: "POST"},
		{site: open, method: "DELETE", path: "/v1/models", status: 405, code: "method_not_allowed", allow: "GET, HEAD"},
		{site: open, method: "OPTIONS", path: "/v1/models", status: 405, code: "method_not_allowed", allow: "GET, HEAD"},
		{site: open, method: "GET", path: "/v1/nothing", status: 404, code: "unknown_url"},
		{site: open, method: "POST", path: "/v1/moderations", status: 404, code: "unknown_url"},
		{site: open, method: "GET", path: "/", status: 200},
		{site: open, method: "GET", path: "/playground/app.js", status: 200},
		{site: open, method: "GET", path: "/metrics", status: 200},
		{site: open, method: "GET", path: "/tandem/v1/describe", status: 404, code: "unknown_url"},
		{site: keyed, method: "POST", path: "/v1/completions", status: 401, code: "invalid_api_key", authenticate: "Bearer"},
		{site: keyed, method: "POST", path: "/v1/completions", headers: []string{"Authorization", "Bearer k-3"}, status: 401,
			code: "invalid_api_key", authenticate: "Bearer"},
		{site: keyed, method: "POST", path: "/v1/completions", headers: []string{"Authorization", "Basic k-1"}, status: 401,
			code: "invalid_api_key", authenticate: "Bearer"},
		{site: keyed, method: "POST", path: "/v1/completions", headers: []string{"Authorization", "Bearer k-2"}, status: 200},
		{site: keyed, method: "POST", path: "/v1/completions", headers: []string{"X-Api-Key", "k-2"}, status: 200},
		{site: keyed, method: "POST", path: "/v1/completions", headers: []string{"X-Api-Key", "k-1", "Authorization", "Bearer dummy"},
			status: 200},
		{site: keyed, method: "POST", path: "/v1/completions", headers: []string{"X-Api-Key", "k-3"}, status: 401, code: "invalid_api_key",
			authenticate: "Bearer"},
		{site: keyed, method: "POST", path: "/v1/completions", headers: []string{"Host", "host.docker.internal", "X-Api-Key", "k-1"},
			status: 200},
		{site: keyed, method: "GET", path: "/readyz", headers: []string{"Host", "evil.example"}, status: 200},
		{site: keyed, method: "POST", path: "/v1/completions", headers: []string{"Origin", "http://other.example"}, status: 401,
			code: "invalid_api_key", authenticate: "Bearer"},
		{site: keyed, method: "GET", path: "/metrics", status: 401, code: "invalid_api_key", authenticate: "Bearer"},
		{site: keyed, method: "GET", path: "/v1/models", status: 401, code: "invalid_api_key", authenticate: "Bearer"},
		{site: keyed, method: "GET", path: "/livez", status: 200},
		{site: keyed, method: "GET", path: "/readyz", status: 200},
		{site: keyed, method: "GET", path: "/health", status: 200},
		{site: keyed, method: "GET", path: "/", status: 404, code: "unknown_url"},
	} {
		send := ""
		if tc.method == "POST" {
			send = body
		}
		answer, all := tc.site.ask(t, tc.method, tc.path, send, tc.headers...)
		if tc.status == 200 {
			if answer.StatusCode != 200 {
				t.Errorf("%s %s %v: %s: %s", tc.method, tc.path, tc.headers, answer.Status, all)
			}
			continue
		}
		p := refusal(t, answer, all)
		if p.status != tc.status || p.Code != tc.code || p.header.Get("Allow") != tc.allow ||
			p.header.Get("WWW-Authenticate") != tc.authenticate {
			t.Errorf("%s %s %v: %+v, want %d %s", tc.method, tc.path, tc.headers, p, tc.status, tc.code)
		}
		if p.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s lets other origins read", tc.method, tc.path)
		}
	}
}

// TestRequestID takes a client's id of a request if it is one.
func TestRequestID(t *testing.T) {
	s := serve(t, script(nil), nil)
	for own, want := range map[string]string{"abc-1": "abc-1", "": "req_", strings.Repeat("x", 129): "req_", "a b": "req_"} {
		answer, _ := s.ask(t, "GET", "/livez", "", "X-Request-Id", own)
		if got := answer.Header.Get("X-Request-Id"); !strings.HasPrefix(got, want) {
			t.Errorf("id %q: %q, want %q", own, got, want)
		}
	}
}

package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// What clients were seen to send, as bodies of this test's own words.
const (
	chatExtras = `"user":"u","metadata":{"k":"v"},"store":true,"service_tier":"auto","prompt_cache_key":"k","prompt_cache_retention":"24h",` +
		`"safety_identifier":"s","verbosity":"low","reasoning_effort":"low","reasoning":{"effort":"low"},"reasoning_format":"auto",` +
		`"cache_prompt":true,"id_slot":1,"keep_alive":"5m","think":false,"min_tokens":1,"typical_p":1,"dry_multiplier":0.5,` +
		`"xtc_probability":0.1,"mirostat":2,"samplers":["top_k"],"options":{"num_ctx":9},"timings_per_token":true,"n_keep":4,` +
		`"chat_template_kwargs":{"style":"s","other":1},"grammar":"","json_schema":null,"guided_json":null,"lora":[],"stop":["","#"],` +
		`"stream_options":{"include_usage":true},"provider":{"only":["x"]},"transforms":[],"top_a":0,"seed":-1,"max_tokens":-1`
	toolExtras = `"tool_choice":"auto","parallel_tool_calls":true,"tools":[{"type":"function","function":{"name":"read","strict":true,` +
		`"description":"d","parameters":{"$schema":"x","type":"object","properties":{"p":{"anyOf":[{"type":"string"},{"type":"null"}]},` +
		`"q":{"$ref":"#/$defs/q"}},"$defs":{"q":{"type":["integer","null"],"exclusiveMinimum":0}},"additionalProperties":false}}}]`
	turns = `"messages":[{"role":"developer","content":"be brief"},{"role":"user","content":[{"type":"text","text":"list",` +
		`"cache_control":{"type":"ephemeral"}}]},{"role":"assistant","content":null,"refusal":"","audio":null,"annotations":[],` +
		`"reasoning":"r","tool_calls":[{"id":"c1","type":"function","index":0,"function":{"name":"read","arguments":"{\"p\":\"x\"}"}}]},` +
		`{"role":"tool","tool_call_id":"c1","name":"read","content":[{"type":"text","text":"found"}]}]`
	claudeExtras = `"metadata":{"user_id":"u"},"thinking":{"type":"adaptive"},"context_management":{"edits":[{"type":"x","keep":"all"}]},` +
		`"output_config":{"effort":"high"},"betas":["a"],"service_tier":"auto","inference_geo":"x","container":null,"mcp_servers":[]`
	codexExtras = `"tool_choice":"auto","parallel_tool_calls":true,"reasoning":{"effort":"low","summary":"auto"},"store":false,` +
		`"include":["reasoning.encrypted_content"],"prompt_cache_key":"k","client_metadata":{"a":"b"},"text":{"verbosity":"low"},` +
		`"service_tier":"auto","truncation":"auto","metadata":{},"safety_identifier":"s","user":"u","top_logprobs":0,"max_tool_calls":3`
)

// sentBodies are such bodies, and what the model reads of them; "" for a body that asks for no text.
var sentBodies = []struct{ path, body, reads string }{
	{"/v1/chat/completions", `{"model":"any",` + turns + `,` + toolExtras + `,` + chatExtras + `}`,
		"be brief\nuser: list\nassistant: \ntool: found\n"},
	{"/chat/completions/", `{"messages":[{"role":"user","content":"a"}],"tools":[],"tool_choice":"auto","max_completion_tokens":3,"n":1}`,
		"<s>user: a\n"},
	{"/v1/completions", `{"prompt":"a","user":"u","stop":["#","@"],"cache_prompt":true,"best_of":1,"echo":false,"n_predict":3,"suffix":null}`,
		"<s>a"},
	{"/v1/messages?beta=true", `{"model":"any","max_tokens":32000,"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1"},` +
		`{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"go"}]},` +
		`{"role":"system","content":"now"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"x"},{"type":"tool_use",` +
		`"id":"t1","name":"read","input":{"p":"x"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"found",` +
		`"cache_control":{"type":"ephemeral"}}]}],"tools":[{"name":"read","description":"d","input_schema":{"type":"object","properties":{}},` +
		`"eager_input_streaming":true,"cache_control":{"type":"ephemeral"}}],"tool_choice":{"type":"auto","disable_parallel_tool_use":true},` +
		claudeExtras + `}`, "system: s\nuser: go\n\nnow\nassistant: \ntool: found\n"},
	{"/v1/messages", `{"max_tokens":5,"messages":[{"role":"user","content":"title"}],"output_config":{"format":{"type":"json_schema",` +
		`"schema":{"type":"object"}}}}`, "user: title\n"},
	{"/v1/responses", `{"model":"any","instructions":"s","input":[{"type":"message","id":"m1","role":"developer","content":[{"type":"input_text",` +
		`"text":"d"}]},{"role":"user","content":[{"type":"input_text","text":"go"}]},{"type":"reasoning","id":"r1","summary":[],` +
		`"encrypted_content":"x"},{"type":"function_call","id":"f1","status":"completed","name":"read","arguments":"{}","call_id":"c1"},` +
		`{"type":"function_call_output","id":"o1","call_id":"c1","output":"found"}],"tools":[{"type":"function","name":"read","strict":false,` +
		`"parameters":{"type":"object","properties":{}}},{"type":"namespace","name":"ns","tools":[{"type":"function","name":"w",` +
		`"parameters":{}}]},{"type":"web_search"}],` + codexExtras + `}`, "assistant: \ntool: found\n"},
	{"/v1/responses", `{"input":"","max_output_tokens":1}`, "<s>user: \n"},
	{"/api/chat", `{"model":"any:latest","stream":true,"tools":[],"keep_alive":"5m","think":false,"options":{"num_predict":3,"num_ctx":64,` +
		`"temperature":0,"num_thread":4,"num_gpu":1,"mirostat":1,"stop":["#"]},"messages":[{"role":"user","content":"a"},{"role":"assistant",` +
		`"content":"","tool_calls":[{"function":{"name":"read","arguments":{"p":1}}}]},{"role":"tool","tool_name":"read","content":"found"}]}`,
		"user: a\nassistant: \ntool: found\n"},
	{"/api/generate", `{"model":"any","prompt":"a","system":"s","stream":false,"format":"","images":[],"context":[],"keep_alive":-1}`,
		"system: s\nuser: a\n"},
	{"/api/generate", `{"model":"any","keep_alive":0}`, ""},
	{"/completion", `{"prompt":"a<s>","n_predict":3,"n_keep":1,"cache_prompt":true,"id_slot":-1,"samplers":["top_k"],"typical_p":1,"mirostat":0,` +
		`"dry_multiplier":0,"dry_sequence_breakers":["x"],"xtc_probability":0,"min_keep":0,"grammar":"","lora":[],"return_progress":true,` +
		`"sse_ping_interval":5,"t_max_predict_ms":9,"n_indent":0,"dynatemp_range":0,"tfs_z":1,"penalize_nl":false,"logit_bias":[],"stop":[]}`,
		"<s>a<s>"},
	{"/infill", `{"input_prefix":"a","input_suffix":"b","input_extra":[],"prompt":"","n_predict":3,"t_max_prompt_ms":5,"n_indent":1,` +
		`"samplers":["top_k","infill"],"cache_prompt":true}`, "<261>a<262>b<263>"},
}

// TestSentBodies: what clients were seen to send is answered, and the model reads what they mean.
func TestSentBodies(t *testing.T) {
	s, last := asked(t, tandem.Result{Finish: tandem.FinishStop})
	for _, tc := range sentBodies {
		*last = tandem.Request{}
		answer, all := s.ask(t, "POST", tc.path, tc.body)
		got := alphabet{}.DecodeWritten(last.Tokens)
		if answer.StatusCode != 200 || !strings.HasSuffix(got, tc.reads) || tc.reads == "" && got != "" {
			t.Errorf("%s\n%s: %s: %s\nis read as %q, want %q", tc.path, tc.body, answer.Status, all, got, tc.reads)
		}
		if !json.Valid([]byte(tc.body)) {
			t.Errorf("%s is no JSON", tc.body)
		}
	}
	for _, tc := range []struct{ path, body, says string }{ // what changes the meaning is refused, by name
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"guided_grammar":"root ::= x"}`, "guided_grammar"},
		{"/v1/responses", `{"input":"a","previous_response_id":"resp_1"}`, "previous_response_id"},
		{"/v1/messages", `{"max_tokens":5,"messages":[{"role":"user","content":"a"}],"thread":{"type":"create"}}`, "thread"},
		{"/api/chat", `{"messages":[{"role":"user","content":"a"}],"options":{"num_ctx":99999}}`, "num_ctx"},
		{"/completion", `{"prompt":"a","grammar":"root ::= x"}`, "grammar"},
	} {
		answer, all := s.ask(t, "POST", tc.path, tc.body)
		if answer.StatusCode != 400 || !strings.Contains(all, tc.says) {
			t.Errorf("%s: %s: %s, want 400 that names %q", tc.body, answer.Status, all, tc.says)
		}
	}
}

// TestInventedFields: in no API is a field that the server does not know a fault of the client's, whatever its value.
func TestInventedFields(t *testing.T) {
	s := newServer(mustDefaults(t, script(nil)), anyHost)
	names := strings.Fields("betas service_tier prompt_cache_key user cache_prompt id_slot keep_aliver samplers typical_p dry_base " +
		"t_max_predict_ms " +
		"client_metadatum inference_geo reasoning_format logit_bias_x n_indent x")
	rapid.Check(t, func(r *rapid.T) {
		d := rapid.SampledFrom(dialects).Draw(r, "API")
		name := rapid.SampledFrom(names).Draw(r, "name")
		values := []string{"null", "true", "1", "-1e300", `"x"`, `"\u0000"`, "[]", "[[{}]]", "{}", `{"a":{"b":[1]}}`}
		value := rapid.SampledFrom(values).Draw(r, "value")
		body := fmt.Sprintf(d.body, fmt.Sprintf(`,"stream":false,%q:%s`, name, value))
		if status, all := s.answerOf(d.path, body); status != 200 {
			r.Fatalf("%s %s: %d: %s", d.path, body, status, all)
		}
	})
}

// FuzzAPIs: no body of any API is a fault of the server's.
func FuzzAPIs(f *testing.F) {
	for i, b := range sentBodies {
		f.Add(byte(i), b.body)
	}
	for i, d := range dialects {
		f.Add(byte(len(sentBodies)+i), fmt.Sprintf(d.body, `,"stream":true`))
	}
	s := newServer(mustDefaults(f, script(nil)), anyHost)
	f.Fuzz(func(t *testing.T, which byte, body string) {
		n := int(which) % (len(sentBodies) + len(dialects))
		path := ""
		if n < len(sentBodies) {
			path = sentBodies[n].path
		} else {
			path = dialects[n-len(sentBodies)].path
		}
		if status, all := s.answerOf(path, body); status >= 500 {
			t.Fatalf("%s %s: %d: %s", path, body, status, all)
		}
	})
}

// mustDefaults returns the configuration of a server that does not listen.
func mustDefaults(t testing.TB, g tandem.Generator) Config {
	t.Helper()
	c, err := Config{Listen: "127.0.0.1:0", Generator: g, Model: Model{Name: "gopher"}, Defaults: testDefaults, Limits: limits,
		Vocab: alphabet{}, Chat: lines{}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// answerOf answers a POST without a connection.
func (s *Server) answerOf(path, body string) (status int, all string) {
	r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, path, strings.NewReader(body))
	r.Host = "localhost"
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

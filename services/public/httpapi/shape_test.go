package httpapi

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// stable replaces what differs from call to call.
func stable(s string) string {
	s = regexp.MustCompile(`"(chatcmpl|cmpl)-[0-9a-f]{24}"`).ReplaceAllString(s, `"$1-ID"`)
	s = regexp.MustCompile(`"created":\d{10}`).ReplaceAllString(s, `"created":1`)
	return regexp.MustCompile(`"first_token_ms":[0-9.e-]+`).ReplaceAllString(s, `"first_token_ms":1`)
}

const (
	head    = `"created":1,"model":"gopher","system_fingerprint":"fp_1"`
	timings = `{"cache_n":1,"prompt_n":2,"prompt_ms":4,"prompt_per_token_ms":2,"prompt_per_second":500,"predicted_n":2,"predicted_ms":8,` +
		`"predicted_per_token_ms":4,"predicted_per_second":250,"draft_n":3,"draft_n_accepted":1}`
	usage = `{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}`
	drawn = `"sampling":{"seed":0,"temperature":0,"top_k":0,"top_p":1,"min_p":0,"repeat_penalty":1,"repeat_last_n":64,` +
		`"frequency_penalty":0,"presence_penalty":0}`
	toldOf = `,"tandem":{` + drawn + `}`
	stats  = `{"rounds":2,"drafted":3,"drafted_depth":3,"accepted":1,"plain_rounds":0,"reopened":0,"tokens_per_round":1,` +
		`"acceptance_per_node":0.3333333333333333,"acceptance_per_depth":0.3333333333333333,"prefill_ms":4,"decode_ms":8,"draft_ms":0,"verify_ms":0,` +
		`"coordination_p50_us":2,"tokens_per_second":250,"first_token_ms":1,"choices":{"go 4/2":2},"reasons":{},"drafters":[{"name":"go","rounds":2,"drafted":3,"accepted":1,"weight":1}],` +
		`"ahead_hits":0,"ahead_tries":0,"ahead_ms":0,"ahead_useful_ms":0,"planning_ms":0,"planning_share":0}`
)

// TestShapes compares whole answers, byte for byte but ids and times.
func TestShapes(t *testing.T) {
	s := serve(t, script(nil), nil)
	for _, tc := range []struct{ name, path, body, want string }{
		{"completion", "/v1/completions", `{"prompt":"ab","max_tokens":2,"seed":0}`,
			`{"id":"cmpl-ID","object":"text_completion",` + head +
				`,"choices":[{"index":0,"text":"he","logprobs":null,"finish_reason":"length"` + toldOf + `}],"usage":` + usage + `,"timings":` + timings +
				toldOf + `}`},
		{"completion with logprobs", "/v1/completions", `{"prompt":"ab","max_tokens":2,"seed":0,"logprobs":1}`,
			`{"id":"cmpl-ID","object":"text_completion",` + head +
				`,"choices":[{"index":0,"text":"he","logprobs":{"tokens":["h","e"],"token_logprobs":[-0.5,-0.5],` +
				`"top_logprobs":[{"h":-0.5},{"e":-0.5}],"text_offset":[2,3]},"finish_reason":"length"` + toldOf + `}],"usage":` + usage + `,"timings":` +
				timings + toldOf + `}`},
		{"completion with logprobs of the tokens alone", "/v1/completions", `{"prompt":"ab","max_tokens":2,"seed":0,"logprobs":0}`,
			`{"id":"cmpl-ID","object":"text_completion",` + head +
				`,"choices":[{"index":0,"text":"he","logprobs":{"tokens":["h","e"],"token_logprobs":[-0.5,-0.5],` +
				`"top_logprobs":[{"h":-0.5},{"e":-0.5}],"text_offset":[2,3]},"finish_reason":"length"` + toldOf + `}],"usage":` + usage + `,"timings":` + timings + toldOf + `}`},
		{"two prompts, two choices each", "/v1/completions", `{"prompt":["ab","cd"],"n":2,"max_tokens":2,"seed":0}`,
			`{"id":"cmpl-ID","object":"text_completion",` + head +
				`,"choices":[{"index":0,"text":"he","logprobs":null,"finish_reason":"length"` + toldOf + `},` +
				`{"index":1,"text":"el","logprobs":null,"finish_reason":"length"` + strings.Replace(toldOf, `"seed":0`, `"seed":1`, 1) + `},{"index":2,"text":"he","logprobs":null,"finish_reason":"length"` + toldOf + `},` +
				`{"index":3,"text":"el","logprobs":null,"finish_reason":"length"` + strings.Replace(toldOf, `"seed":0`, `"seed":1`, 1) + `}],"usage":{"prompt_tokens":6,"completion_tokens":8,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":2}},` +
				`"timings":{"cache_n":2,"prompt_n":4,"prompt_ms":4,"prompt_per_token_ms":1,"prompt_per_second":1000,"predicted_n":8,"predicted_ms":8,` +
				`"predicted_per_token_ms":1,"predicted_per_second":1000,"draft_n":12,"draft_n_accepted":4}}`},
		{"chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":""}],"max_tokens":2,"seed":0}`,
			`{"id":"chatcmpl-ID","object":"chat.completion",` + head +
				`,"choices":[{"index":0,"message":{"role":"assistant","content":"he"},"logprobs":null,"finish_reason":"length"` + toldOf + `}],"usage":` +
				strings.NewReplacer(`"prompt_tokens":3`, `"prompt_tokens":8`, `"total_tokens":5`, `"total_tokens":10`,
					`}}`, `},"completion_tokens_details":{"reasoning_tokens":0}}`).Replace(usage) +
				`,"timings":` +
				strings.NewReplacer(`"prompt_n":2`, `"prompt_n":7`, `"prompt_per_token_ms":2`, `"prompt_per_token_ms":0.5714285714285714`,
					`"prompt_per_second":500`, `"prompt_per_second":1750`).Replace(timings) + toldOf + `}`},
		{"tokenize", "/tokenize", `{"content":"a<s>b"}`, `{"tokens":[97,256,98]}`},
		{"tokenize with the special ones", "/tokenize", `{"content":"a<s>","add_special":true,"parse_special":false}`,
			`{"tokens":[256,97,60,115,62]}`},
		{"tokenize with pieces", "/tokenize", `{"content":"é","with_pieces":true}`,
			`{"tokens":[{"id":195,"piece":[195]},{"id":169,"piece":[169]}]}`},
		{"tokenize with pieces of control tokens", "/tokenize", `{"content":"<s>","with_pieces":true}`,
			`{"tokens":[{"id":256,"piece":"<s>"}]}`},
		{"tokenize nothing", "/tokenize", `{"content":""}`, `{"tokens":[]}`},
		{"detokenize", "/detokenize", `{"tokens":[97,195,169,195]}`, `{"content":"aé` + "\ufffd" + `"}`},
		{"detokenize control tokens", "/detokenize", `{"tokens":[256,97,257]}`, `{"content":"<s>a</s>"}`},
		{"detokenize a cut character", "/detokenize", `{"tokens":[240,159,152,97]}`, `{"content":"` + "\ufffd" + `a"}`},
		{"apply-template", "/apply-template",
			`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"developer","content":"c"}]}`,
			`{"prompt":"user: a\nb\nsystem: c\n"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answer, all := s.ask(t, "POST", tc.path, tc.body)
			if answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "application/json; charset=utf-8" ||
				answer.Header.Get("X-Request-Id") == "" {
				t.Fatalf("%s, %v: %s", answer.Status, answer.Header, all)
			}
			same(t, tc.name, unescaped(stable(all)), tc.want)
		})
	}
}

func TestModels(t *testing.T) {
	s := serve(t, script(nil), nil)
	const model = `{"id":"gopher","object":"model","created":1700000000,"owned_by":"tandem","max_model_len":64,"context_length":64,"meta":{"architecture":"llama","n_vocab":300,"n_ctx":64}}`
	_, all := s.ask(t, "GET", "/v1/models", "")
	same(t, "list", all, `{"data":[`+model+`],"object":"list"}`)
	_, all = s.ask(t, "GET", "/v1/models/gopher", "")
	same(t, "one", all, model)
	_, all = s.ask(t, "GET", "/v1/models/", "")
	same(t, "list with a slash", all, `{"data":[`+model+`],"object":"list"}`)
	for _, name := range []string{"gpt-4", "a/b"} {
		if p := s.refused(t, "GET", "/v1/models/"+name, ""); p.status != 404 || p.Code != "model_not_found" {
			t.Errorf("model %q: %+v", name, p)
		}
	}
	if answer, all := s.ask(t, "HEAD", "/v1/models", ""); answer.StatusCode != 200 || all != "" {
		t.Errorf("HEAD: %s with %q", answer.Status, all)
	}
}

// TestStreamShapes compares whole streams.
func TestStreamShapes(t *testing.T) {
	s := serve(t, script(nil), nil)
	chat := func(choices, rest string) string {
		return `{"id":"chatcmpl-ID","object":"chat.completion.chunk",` + head + `,"choices":[` + choices + `]` + rest + `}`
	}
	text := func(choices, rest string) string {
		return `{"id":"cmpl-ID","object":"text_completion",` + head + `,"choices":[` + choices + `]` + rest + `}`
	}
	chatTimings := strings.NewReplacer(`"prompt_n":2`, `"prompt_n":7`, `"prompt_per_token_ms":2`,
		`"prompt_per_token_ms":0.5714285714285714`, `"prompt_per_second":500`, `"prompt_per_second":1750`).Replace(timings)
	for _, tc := range []struct {
		name, path, body string
		want             []string
	}{
		{"completion", "/v1/completions", `{"prompt":"ab","max_tokens":2,"seed":0,"stream":true}`, []string{
			text(`{"index":0,"text":"h","logprobs":null,"finish_reason":null}`, ``),
			text(`{"index":0,"text":"e","logprobs":null,"finish_reason":null}`, ``),
			text(`{"index":0,"text":"","logprobs":null,"finish_reason":"length"}`, `,"timings":`+timings+toldOf)}},
		{"completion with usage and logprobs", "/v1/completions",
			`{"prompt":"ab","max_tokens":2,"seed":0,"stream":true,"stream_options":{"include_usage":true},"logprobs":1}`, []string{
				text(`{"index":0,"text":"h","logprobs":{"tokens":["h"],"token_logprobs":[-0.5],"top_logprobs":[{"h":-0.5}],"text_offset":[2]},"finish_reason":null}`, `,"usage":null`),
				text(`{"index":0,"text":"e","logprobs":{"tokens":["e"],"token_logprobs":[-0.5],"top_logprobs":[{"e":-0.5}],"text_offset":[3]},"finish_reason":null}`, `,"usage":null`),
				text(`{"index":0,"text":"","logprobs":null,"finish_reason":"length"}`, `,"usage":null,"timings":`+timings+toldOf),
				text(``, `,"usage":`+usage+`,"timings":`+timings)}},
		{"chat", "/v1/chat/completions",
			`{"messages":[{"role":"user","content":""}],"max_tokens":1,"seed":0,"stream":true,"logprobs":true,"top_logprobs":2}`, []string{
				chat(`{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`, ``),
				chat(`{"index":0,"delta":{"content":"h"},"logprobs":{"content":[{"token":"h","logprob":-0.5,"bytes":[104],"top_logprobs":[{"token":"h","logprob":-0.5,"bytes":[104]},`+
					`{"token":"i","logprob":-1.5,"bytes":[105]}]}],"refusal":null},"finish_reason":null}`, ``),
				chat(`{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}`, `,"timings":`+
					strings.NewReplacer(`"predicted_n":2`, `"predicted_n":1`, `"predicted_per_token_ms":4`, `"predicted_per_token_ms":8`,
						`"predicted_per_second":250`, `"predicted_per_second":125`).Replace(chatTimings)+toldOf)}},
		{"chat with a report", "/v1/chat/completions",
			`{"messages":[{"role":"user","content":""}],"max_tokens":2,"seed":0,"stream":true,"speculation":{"report":true}}`, []string{
				chat(`{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`, ``),
				chat(`{"index":0,"delta":{"content":"h"},"logprobs":null,"finish_reason":null}`,
					`,"tandem":{"tokens":[{"id":104,"text":"h","origin":"target"}],`+round(0, 8, "h", 104)+`}`),
				chat(`{"index":0,"delta":{"content":"e"},"logprobs":null,"finish_reason":null}`,
					`,"tandem":{"tokens":[{"id":101,"text":"e","origin":"draft"}],`+round(1, 9, "e", 101)+`}`),
				chat(`{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}`, `,"timings":`+chatTimings+`,"tandem":{`+drawn+`,"stats":`+
					stats+
					`}`)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answer, all := s.ask(t, "POST", tc.path, tc.body)
			if answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" ||
				answer.Header.Get("Cache-Control") != "no-cache" {
				t.Fatalf("%s, %v: %s", answer.Status, answer.Header, all)
			}
			got := events(t, strings.NewReader(stable(all)))
			want := append(tc.want, "[DONE]")
			if len(got) != len(want) {
				t.Fatalf("%d events, want %d:\n%s", len(got), len(want), all)
			}
			for i, e := range got[:len(got)-1] {
				if e.kind != "" {
					t.Errorf("event %d is of kind %q", i, e.kind)
				}
				same(t, "event", e.data, want[i])
			}
			if got[len(got)-1].data != "[DONE]" {
				t.Errorf("the last event is %q", got[len(got)-1])
			}
		})
	}
}

// TestLossyAnswers: answers whose drafts were accepted by typical acceptance say so, with a report and without; and the field asks for it.
func TestLossyAnswers(t *testing.T) {
	var asked tandem.Sampling
	s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		asked = r.Sampling
		res, err := hello(ctx, r, sink)
		res.Stats.Accept = string(r.Sampling.Accept)
		return res, err
	}), nil)
	for _, stream := range []bool{false, true} {
		_, all := s.ask(t, "POST", "/v1/completions",
			fmt.Sprintf(`{"prompt":"a","accept":"typical","accept_epsilon":0.2,"max_tokens":2,"stream":%v,"speculation":{"report":true}}`, stream))
		if asked.Accept != tandem.AcceptTypical || asked.Epsilon != 0.2 {
			t.Errorf("asked for %+v", asked)
		}
		for _, where := range []string{`"timings":{`, `"stats":{`} {
			_, rest, _ := strings.Cut(all, where)
			if object, _, _ := strings.Cut(rest, "}"); !strings.Contains(object, `"accept":"typical"`) {
				t.Errorf("stream %v: %s says nothing of typical acceptance: %s", stream, where, all)
			}
		}
	}
	if p := s.refused(t, "POST", "/v1/completions", `{"prompt":"a","accept":"all"}`); p.status != 400 || p.Param != "accept" {
		t.Errorf("accept all: %+v", p)
	}
}

// round is what hello reports of a round.
func round(index, base int, text string, id int) string {
	return fmt.Sprintf(`"round":{"index":%d,"base":%d,"choice":"go 4/2","why":"it is cheap","drafters":["go","py"],"nodes":[`+
		`{"id":120,"text":"x","parent":-1,"logprob":0,"votes":[0,1],"accepted":true},{"id":%d,"text":%q,"parent":0,"logprob":-0.25,"votes":[1],"accepted":true},`+
		`{"id":122,"text":"z","parent":0,"logprob":-2,"votes":[0],"accepted":false}],"lanes":[{"stage":"draft","by":"go","from_ms":1,"to_ms":2}]}`, index, base, id, text)
}

// TestReportOfAnswer looks at the report of an answer that is no stream.
func TestReportOfAnswer(t *testing.T) {
	s := serve(t, script(nil), nil)
	_, all := s.ask(t, "POST", "/v1/completions", `{"prompt":"ab","max_tokens":2,"seed":0,"speculation":{"report":true}}`)
	same(t, "answer", stable(all), `{"id":"cmpl-ID","object":"text_completion",`+head+
		`,"choices":[{"index":0,"text":"he","logprobs":null,"finish_reason":"length","tandem":{`+drawn+
		`,"tokens":[{"id":104,"text":"h","origin":"target"},{"id":101,"text":"e","origin":"draft"}],"rounds":[{`+
		strings.TrimPrefix(round(0, 3, "h", 104), `"round":{`)+`,{`+
		strings.TrimPrefix(round(1, 4, "e", 101), `"round":{`)+`],"stats":`+stats+`}}],"usage":`+usage+`,"timings":`+timings+
		`,"tandem":{`+drawn+`,"stats":`+stats+`}}`)
}

package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestNative: the whole answer of /completion, and the same one as a stream.
func TestNative(t *testing.T) {
	s := serve(t, script(nil), nil)
	const body = `{"prompt":"ab","n_predict":3,"n_probs":1,"seed":6,"temperature":0.5,"stop":["#"],"logit_bias":[[104,false]],"grammar":"",` +
		`"cache_prompt":true,"id_slot":-1,"samplers":["top_k"]%s}`
	const probs = `[{"id":104,"token":"h","bytes":[104],"logprob":-0.5,"top_logprobs":[{"id":104,"token":"h","bytes":[104],"logprob":-0.5}]},` +
		`{"id":101,"token":"e","bytes":[101],"logprob":-0.5,"top_logprobs":[{"id":101,"token":"e","bytes":[101],"logprob":-0.5}]},` +
		`{"id":108,"token":"l","bytes":[108],"logprob":-0.5,"top_logprobs":[{"id":108,"token":"l","bytes":[108],"logprob":-0.5}]}]`
	const end = `"model":"gopher","tokens_predicted":3,"tokens_evaluated":3,"generation_settings":{"seed":6,"temperature":0.5,"top_k":0,"top_p":1,` +
		`"min_p":0,"repeat_last_n":64,"repeat_penalty":1,"presence_penalty":0,"frequency_penalty":0,"max_tokens":3,"n_predict":3,"ignore_eos":false,` +
		`"stream":%v,"stop":["#"],"logit_bias":[[104,-100]],"n_probs":1,"timings_per_token":%v,"n_ctx":64},"prompt":"<s>ab","has_new_line":false,` +
		`"truncated":false,"stop_type":"limit","stopping_word":"","tokens_cached":1,"timings":{"cache_n":1,"prompt_n":2,"prompt_ms":4,` +
		`"prompt_per_token_ms":2,"prompt_per_second":500,"predicted_n":3,"predicted_ms":8,"predicted_per_token_ms":2.6666666666666665,` +
		`"predicted_per_second":375,"draft_n":3,"draft_n_accepted":1}`
	answer, all := s.ask(t, "POST", "/completion", fmt.Sprintf(body, `,"return_tokens":true`))
	same(t, "whole", all, `{"index":0,"content":"hel","tokens":[104,101,108],"id_slot":-1,"stop":true,`+fmt.Sprintf(end, false, false)+
		`,"completion_probabilities":`+probs+`,"system_fingerprint":"fp_1"}`)
	if got := answer.Header.Get("X-Tandem-Ignored"); got == "" || strings.Contains(got, "grammar") {
		t.Errorf("ignored %q", got)
	}
	answer, all = s.ask(t, "POST", "/completion", fmt.Sprintf(body, `,"stream":true,"timings_per_token":true`))
	if kind := answer.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		t.Errorf("Content-Type %q", kind)
	}
	got := events(t, strings.NewReader(all))
	if len(got) != 4 {
		t.Fatalf("events %v: want three pieces and the end", got)
	}
	text := ""
	for i, e := range got[:3] {
		p := object(t, e.data)
		text += p["content"].(string)
		times := p["timings"].(map[string]any)
		if p["stop"] != false || p["tokens_predicted"] != float64(i+1) || len(p["tokens"].([]any)) != 1 ||
			times["predicted_n"] != float64(i+1) || len(p["completion_probabilities"].([]any)) != 1 {
			t.Errorf("piece %d: %s", i, e.data)
		}
	}
	if text != "hel" {
		t.Errorf("the pieces make %q", text)
	}
	same(t, "end", got[3].data, `{"index":0,"content":"","tokens":[],"id_slot":-1,"stop":true,`+fmt.Sprintf(end, true, true)+
		`,"system_fingerprint":"fp_1"}`)
}

// asked returns a server that notes what it is asked for.
func asked(t *testing.T, result tandem.Result) (s *site, last *tandem.Request) {
	last = new(tandem.Request)
	var several sync.Mutex
	return serve(t, written(func(_ context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		several.Lock()
		defer several.Unlock()
		*last = r
		result.PromptTokens, result.OutputTokens = len(r.Tokens), 1
		if err := sink.Started(tandem.Started{Request: r}); err != nil {
			return result, err
		}
		return result, sink.Delta(tandem.Delta{Text: "o\n", Tokens: []tandem.Token{'o'}, Origins: []tandem.Origin{0}})
	}), large), last
}

// TestNativePrompts: every form of a prompt, and of a gap.
func TestNativePrompts(t *testing.T) {
	s, last := asked(t, tandem.Result{Finish: tandem.FinishStop})
	for _, tc := range []struct{ path, body, want string }{
		{"/completion", `{"prompt":"a<s>b"}`, "<s>a<s>b"},
		{"/completion", `{"prompt":"<s>b","parse_special":false}`, "<s><s>b"},
		{"/completion", `{"prompt":[97,98]}`, "ab"},
		{"/completion", `{"prompt":[97,"b<s>",99]}`, "ab<s>c"},
		{"/completion", `{"prompt":["a",98,"c"]}`, "<s>abc"},
		{"/completion", `{"prompt":{"prompt_string":"a"}}`, "<s>a"},
		{"/completion", `{"prompt":["a"]}`, "<s>a"},
		{"/completion", `{"prompt":[[97,"b"]]}`, "ab"},
		{"/completion", `{"prompt":["a",[98,"c"]],"n":1}`, "2"},
		{"/completion", `{"prompt":["a",{"prompt_string":"b"},[99]]}`, "3"},
		{"/completion", `{"prompt":"a","n_cmpl":2}`, "2"},
		{"/infill", `{"input_prefix":"a","input_suffix":"b"}`, "<s><261>a<262>b<263>"},
		{"/infill", `{"input_prefix":"a","input_suffix":"","prompt":"c"}`, "<s><261>ac<262><263>"},
		{"/infill", `{"input_prefix":"","input_suffix":"","input_extra":[{"filename":"f","text":"<s>"},{"text":"u"}]}`,
			"<s><264>f:<s><264>tmp:u<261><262><263>"},
	} {
		answer, all := s.ask(t, "POST", tc.path, tc.body)
		if answer.StatusCode != 200 {
			t.Errorf("%s: %s: %s", tc.body, answer.Status, all)
			continue
		}
		if n := len(tc.want); n == 1 { // several answers
			var several []struct {
				Index           int
				Prompt, Content string
			}
			if err := json.Unmarshal([]byte(all), &several); err != nil || fmt.Sprint(len(several)) != tc.want ||
				several[1].Index != 1 || several[1].Content != "o\n" {
				t.Errorf("%s: %s, %v", tc.body, all, err)
			}
			continue
		}
		if got := (alphabet{}).DecodeWritten(last.Tokens); got != tc.want || object(t, all)["prompt"] != tc.want {
			t.Errorf("%s is read as %q: want %q", tc.body, got, tc.want)
		}
		if begins := slices.Contains(last.Tokens, '<'); strings.Contains(tc.body, "parse_special") != begins && tc.path == "/completion" {
			t.Errorf("%s: control tokens in the text %v", tc.body, last.Tokens)
		}
	}
}

// TestNativeValues: values that mean something else in completions, and what the answer says of its end.
func TestNativeValues(t *testing.T) {
	s, last := asked(t, tandem.Result{Finish: tandem.FinishStop, Stopped: "##"})
	end := s.post(t, "/completion", `{"prompt":"a","temperature":-1,"top_k":-1,"repeat_last_n":0,"repeat_penalty":2,"n_predict":0,"stop":["##"],`+
		`"logit_bias":{"ab":1,"99":-2}}`)
	p := last.Sampling
	if p.Temperature != 0 || p.TopK != 0 || p.RepeatPenalty != 1 || last.MaxTokens != 1 || !slices.Equal(p.Bias,
		[]tandem.Bias{{Token: 'a', Add: 1}, {Token: 'b', Add: 1}, {Token: 'c', Add: -2}}) {
		t.Errorf("asks for %+v of %d tokens", p, last.MaxTokens)
	}
	if end["stop_type"] != "word" || end["stopping_word"] != "##" || end["has_new_line"] != true {
		t.Errorf("the end: %v", end)
	}
	if s.post(t, "/completion", `{"prompt":"a","repeat_last_n":-1,"n_predict":-1}`); last.Sampling.RepeatLast != tandem.MaxRepeatLast ||
		last.MaxTokens != 1<<12-2 {
		t.Errorf("the whole text, to the end of the context: %+v, %d tokens", last.Sampling, last.MaxTokens)
	}
	s.post(t, "/completion", `{"prompt":"a","seed":4294967295}`)
	first := last.Sampling.Seed
	if s.post(t, "/completion", `{"prompt":"a","seed":4294967295}`); last.Sampling.Seed == first {
		t.Error("llama.cpp's word for a random seed is a seed")
	}
	same(t, "fields", strings.TrimSpace(string(encode(s.post(t, "/completion", `{"prompt":"a","n_predict":7,"response_fields":["content",`+
		`"generation_settings/n_predict","timings/none"]}`)))), `{"content":"o\n","generation_settings/n_predict":7}`)

	// a marker ends a gap, unless the model is to go on
	s, last = asked(t, tandem.Result{Finish: tandem.FinishStop, Stopped: "<264>"})
	const gap = `{"input_prefix":"a","input_suffix":"b","stop":["##"]%s}`
	end = s.post(t, "/infill", fmt.Sprintf(gap, ""))
	if end["stop_type"] != "eos" || end["stopping_word"] != "" || !last.Written || !slices.Equal(last.Stop, []string{"##", "<264>"}) ||
		len(end["generation_settings"].(map[string]any)["stop"].([]any)) != 1 {
		t.Errorf("%v, stops %q", end, last.Stop)
	}
	if s.post(t, "/infill", fmt.Sprintf(gap, `,"ignore_eos":true`)); last.Written || !slices.Equal(last.Stop, []string{"##"}) {
		t.Errorf("stops %q although ends are ignored", last.Stop)
	}
	s.post(t, "/v1/completions", `{"prompt":"a","suffix":"b"}`)
	if !last.Written || !slices.Equal(last.Stop, []string{"<264>"}) {
		t.Errorf("a suffix: stops %q", last.Stop)
	}
	s, _ = asked(t, tandem.Result{Finish: tandem.FinishStop})
	if end = s.post(t, "/completion", `{"prompt":"a"}`); end["stop_type"] != "eos" || end["truncated"] != false {
		t.Errorf("the end of a text: %v", end)
	}
	full := serve(t, script(nil), nil)
	if end = full.post(t, "/completion", `{"prompt":"a","n_predict":-1}`); end["stop_type"] != "limit" || end["truncated"] != true {
		t.Errorf("a full context: %v", end)
	}
}

// TestNativeRefused: what cannot be done is refused by name, in llama.cpp's form.
func TestNativeRefused(t *testing.T) {
	s := serve(t, script(nil), nil)
	const gap = `"input_prefix":"a","input_suffix":"b"`
	for _, tc := range []struct{ path, body, param string }{
		{"/completion", `{}`, "prompt"},
		{"/completion", `{"prompt":7}`, "prompt"},
		{"/completion", `{"prompt":{"x":1}}`, "prompt"},
		{"/completion", `{"prompt":[1,[2]]}`, "prompt"},
		{"/completion", `{"prompt":[["a",true]]}`, "prompt[0][1]"},
		{"/completion", `{"prompt":[]}`, "prompt"},
		{"/completion", `{"prompt":{"prompt_string":"a","multimodal_data":["x"]}}`, "prompt.multimodal_data"},
		{"/completion", `{"prompt":"a","grammar":"root ::= \"a\""}`, "grammar"},
		{"/completion", `{"prompt":"a","json_schema":{"type":"objekt"}}`, "json_schema"},
		{"/completion", `{"prompt":"a","lora":[{"id":0,"scale":1}]}`, "lora"},
		{"/completion", `{"prompt":"a","n_probs":21}`, "n_probs"},
		{"/completion", `{"prompt":"a","n_probs":1,"post_sampling_probs":true}`, "post_sampling_probs"},
		{"/completion", `{"prompt":"a","input_suffix":"b"}`, "input_suffix"},
		{"/completion", `{"prompt":"a","suffix":"b"}`, "suffix"},
		{"/completion", `{"prompt":"a","n_predict":-3}`, "n_predict"},
		{"/completion", `{"prompt":"a","temperature":"x"}`, "temperature"},
		{"/completion", `{"prompt":"a","logit_bias":[["a"]]}`, "logit_bias"},
		{"/completion", `{"prompt":"a","logit_bias":[[{},1]]}`, "logit_bias"},
		{"/completion", `{"prompt":"a","response_fields":"content"}`, "response_fields"},
		{"/completion", `{"prompt":"a","return_tokens":1}`, "return_tokens"},
		{"/completion", `{"prompt":[1000]}`, "prompt"},
		{"/infill", `{"input_prefix":"a"}`, "input_suffix"},
		{"/infill", `{"input_suffix":"a"}`, "input_prefix"},
		{"/infill", `{` + gap + `,"prompt":[1]}`, "prompt"},
		{"/infill", `{` + gap + `,"input_extra":[{"filename":"a"}]}`, "input_extra[0].text"},
		{"/infill", `{` + gap + `,"input_extra":7}`, "input_extra"},
	} {
		answer, all := s.ask(t, "POST", tc.path, tc.body)
		var e struct {
			Error struct {
				Code                 int
				Message, Type, Param string
			}
		}
		if err := json.Unmarshal([]byte(all), &e); err != nil || answer.StatusCode != 400 || e.Error.Code != 400 ||
			e.Error.Type != "invalid_request_error" || e.Error.Param != tc.param || !strings.Contains(e.Error.Message, tc.param) {
			t.Errorf("%s: %s: %s, want 400 for %s", tc.body, answer.Status, all, tc.param)
		}
	}
	_, all := s.ask(t, "POST", "/completion", `{"prompt":"`+strings.Repeat("a", 100)+`"}`)
	if !strings.Contains(all, `"type":"exceed_context_size_error"`) || !strings.Contains(all, `"n_prompt_tokens":101,"n_ctx":64`) {
		t.Errorf("a prompt that is too long: %s", all)
	}
	without := serve(t, script(nil), func(c *Config) { c.Vocab = noInfill{} })
	if answer, all := without.ask(t, "POST", "/infill", `{`+gap+`}`); answer.StatusCode != 400 ||
		!strings.Contains(all, "no token for prefix, middle (tokenizer.ggml.fim_pre_token_id") {
		t.Errorf("a model without markers: %s: %s", answer.Status, all)
	}
	failing := serve(t, written(func(_ context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		_ = sink.Delta(tandem.Delta{Text: "x", Tokens: []tandem.Token{1}})
		return tandem.Result{}, tandem.Errorf("generate", tandem.Unavailable, "no verifier")
	}), nil)
	_, all = failing.ask(t, "POST", "/completion", `{"prompt":"a","stream":true}`)
	if got := events(t, strings.NewReader(all)); len(got) != 2 || !strings.Contains(got[1].data, `{"error":{"code":503,`) {
		t.Errorf("a stream that fails: %s", all)
	}
}

// TestSlots: who came first has a place, with its parameters and without its texts; others are told that it is taken, and by nobody whom.
func TestSlots(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	m := NewMonitor(written(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		_ = sink.Delta(tandem.Delta{Text: "x", Tokens: []tandem.Token{1, 2}})
		begun <- struct{}{}
		select {
		case <-end:
		case <-ctx.Done():
		}
		return tandem.Result{Finish: tandem.FinishStop}, nil
	}), nil, nil).Sessions(2)
	keys := keysOf(t, "k", "other")
	s := serve(t, m, func(c *Config) { c.Slots, c.Keys = m.Slots, keys })
	auth := []string{"Authorization", "Bearer k"}
	slots := func(key string) string {
		t.Helper()
		answer, all := s.ask(t, "GET", "/slots?fail_on_no_slot=1", "", "Authorization", "Bearer "+key)
		return fmt.Sprintf("%d %s", answer.StatusCode, strings.TrimSpace(all))
	}
	const free = `{"id":%d,"id_task":-1,"n_ctx":64,"speculative":false,"is_processing":false}`
	if got, want := slots("k"), "200 ["+fmt.Sprintf(free, 0)+","+fmt.Sprintf(free, 1)+"]"; got != want {
		t.Errorf("none runs: %s, want %s", got, want)
	}
	done := make(chan int)
	ask := func() {
		answer, _ := s.ask(t, "POST", "/completion", `{"prompt":"secret","n_predict":5,"seed":3,"stop":["word"]}`, auth...)
		done <- answer.StatusCode
	}
	go ask()
	<-begun
	got := slots("k")
	if !strings.Contains(got, `"is_processing":true,"params":{"seed":3,`) || strings.Contains(got, "secret") || strings.Contains(got, "word") ||
		!strings.Contains(got, `"next_token":[{"has_next_token":true,"n_remain":3,"n_decoded":2}]`) {
		t.Errorf("one runs: %s", got)
	}
	if got = slots("other"); strings.Contains(got, "seed") || strings.Contains(got, `"id_task":0`) || !strings.Contains(got, `"is_processing":true`) {
		t.Errorf("another tenant is told %s", got)
	}
	for range 2 {
		go ask()
		<-begun
	}
	if got = slots("k"); !strings.HasPrefix(got, "503 ") {
		t.Errorf("two of three run: %s", got)
	}
	if answer, _ := s.ask(t, "GET", "/slots", ""); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a key: %s", answer.Status)
	}
	for range 3 {
		end <- struct{}{}
		if status := <-done; status != 200 {
			t.Errorf("status %d", status)
		}
	}
	if got = slots("k"); strings.Contains(got, "true") {
		t.Errorf("all have ended: %s", got)
	}
}

// TestSlotsOfOthers: with a key for the metrics, another tenant's client learns nothing of what runs but from the 503, and no client how
// often others have asked.
func TestSlotsOfOthers(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	m := NewMonitor(written(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		_ = sink.Delta(tandem.Delta{Text: "x", Tokens: []tandem.Token{1}})
		begun <- struct{}{}
		<-end
		return tandem.Result{Finish: tandem.FinishStop}, nil
	}), nil, nil).Sessions(2)
	keys, scraper := keysOf(t, "k", "other"), keysOf(t, "metrics")
	s := serve(t, m, func(c *Config) { c.Slots, c.Keys, c.MetricsKeys = m.Slots, keys, scraper })
	slots := func(key, query string) (int, string) {
		t.Helper()
		answer, all := s.ask(t, "GET", "/slots"+query, "", "Authorization", "Bearer "+key)
		return answer.StatusCode, all
	}
	done := make(chan struct{})
	ask := func(key string) {
		_, _ = s.ask(t, "POST", "/completion", `{"prompt":"a"}`, "Authorization", "Bearer "+key)
		done <- struct{}{}
	}
	for range 3 {
		go ask("k")
		<-begun
		end <- struct{}{}
		<-done
	}
	go ask("other")
	<-begun
	for key, want := range map[string][2]int{"k": {0, 0}, "other": {1, 1}, "metrics": {1, 0}} { // busy places, those with the number 0
		_, all := slots(key, "")
		if got := [2]int{strings.Count(all, "true,\"params") + strings.Count(all, "true}"), strings.Count(all, `"id_task":0`)}; got != want ||
			strings.Count(all, `"id_task":`) != 2 || strings.Count(all, `"id_task":-1`) != 2-want[1] {
			t.Errorf("%s is told %s", key, all)
		}
	}
	go ask("other")
	<-begun
	if status, all := slots("k", "?fail_on_no_slot=1"); status != 503 {
		t.Errorf("no place is free: %d %s", status, all)
	}
	for range 2 {
		end <- struct{}{}
		<-done
	}
}

package httpapi

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// TestPromptProgress: a stream whose request asks for it tells how far the prompt has been read in llama.cpp's form; then the
// answer comes as without it. An answer that is sent as a whole, and other APIs, tell nothing.
func TestPromptProgress(t *testing.T) {
	s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		if r.Progress {
			for i := range 2 {
				err := sink.Progress(tandem.PromptProgress{Total: 9, Cached: 1, Processed: 1 + 4*i,
					Time: time.Duration(i) * time.Second})
				if err != nil {
					return tandem.Result{}, err
				}
			}
		}
		return hello(ctx, r, sink)
	}), nil)
	const told = `"prompt_progress":{"total":9,"cache":1,"processed":5,"time_ms":1000}`
	for path, tc := range map[string]struct{ body, piece string }{
		"/v1/chat/completions": {`{"messages":[{"role":"user","content":"a"}],"max_tokens":3,"seed":6`,
			`"choices":[{"index":0,"delta":{"role":"assistant","content":null},"logprobs":null,"finish_reason":null}]`},
		"/v1/completions": {`{"prompt":"a","max_tokens":3,"seed":6`,
			`"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null}]`},
		"/completion": {`{"prompt":"a","n_predict":3,"seed":6`, `{"index":0,"content":"","tokens":[],"stop":false,`},
		"/infill":     {`{"input_prefix":"a","input_suffix":"b","n_predict":3,"seed":6`, `{"index":0,"content":"","tokens":[],"stop":false,`},
		"/api/chat":   {`{"messages":[{"role":"user","content":"a"}],"options":{"num_predict":3,"seed":6}`, ""},
	} {
		_, plain := s.ask(t, "POST", path, tc.body+`,"stream":true}`)
		if tc.piece == "" {
			if _, all := s.ask(t, "POST", path, tc.body+`,"stream":true,"return_progress":true}`); strings.Contains(all, "progress") {
				t.Errorf("%s: %s", path, all)
			}
			continue
		}
		_, all := s.ask(t, "POST", path, tc.body+`,"stream":true,"return_progress":true}`)
		got, want := events(t, strings.NewReader(all)), events(t, strings.NewReader(plain))
		if len(got) != len(want)+2 || strings.Count(all, "prompt_progress") != 2 || !strings.Contains(got[1].data, told) ||
			!strings.Contains(got[1].data, tc.piece) || strings.Contains(plain, "prompt_progress") {
			t.Errorf("%s: %s\nwithout it: %s", path, all, plain)
		}
		if _, whole := s.ask(t, "POST", path, tc.body+`,"return_progress":true}`); strings.Contains(whole, "progress") {
			t.Errorf("%s, as a whole: %s", path, whole)
		}
		if answer, all := s.ask(t, "POST", path, tc.body+`,"return_progress":"yes"}`); answer.StatusCode != 400 ||
			!strings.Contains(all, "return_progress") {
			t.Errorf("%s: %s: %s", path, answer.Status, all)
		}
	}
}

package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestRepeats: only a request that sets no limit, and lets the model end its answer, is ended because the model repeats itself. Then the
// answer of each API ends as one that was cut, and says why, as the log does.
func TestRepeats(t *testing.T) {
	t.Parallel()
	const ask = `"messages":[{"role":"user","content":"a"}]`
	for path, tc := range map[string]struct{ body, free, limited, finish string }{
		"/v1/chat/completions": {ask, ``, `,"max_tokens":3`, `"finish_reason":"length"`},
		"/v1/completions":      {`"prompt":"a"`, `,"max_tokens":-1`, `,"max_tokens":3`, `"finish_reason":"length"`},
		"/v1/responses":        {`"input":"a"`, ``, `,"max_output_tokens":3`, `"incomplete_details":{"reason":"max_output_tokens"}`},
		"/completion":          {`"prompt":"a"`, `,"n_predict":-1`, `,"n_predict":3`, `"stop_type":"limit"`},
		"/api/chat":            {ask, ``, `,"options":{"num_predict":3}`, `"done_reason":"length"`},
		"/api/generate":        {`"prompt":"a"`, `,"options":{"num_predict":-1}`, `,"options":{"num_predict":3}`, `"done_reason":"length"`},
	} {
		var log growing
		s := serve(t, script(func(_ context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
			res := tandem.Result{Identity: "fp_1", Finish: tandem.FinishLength, PromptTokens: len(r.Tokens), OutputTokens: 3}
			if r.Repeats == 1000 && r.MaxTokens > 3 {
				res.Repeated = 7
			} else if r.Repeats != 0 {
				t.Errorf("%s: repeats is %d with a limit of %d", path, r.Repeats, r.MaxTokens)
			}
			err := sink.Started(tandem.Started{Request: r})
			if err == nil {
				err = sink.Delta(tandem.Delta{Text: "xxx", Tokens: []tandem.Token{'x', 'x', 'x'}, Origins: make([]tandem.Origin, 3)})
			}
			return res, err
		}), func(c *Config) {
			c.Defaults.MaxTokens, c.Defaults.Repeats, c.Log = 0, 1000, slog.New(slog.NewTextHandler(&log, nil))
		})
		for _, stream := range []bool{false, true} {
			body := fmt.Sprintf(`{%s,"stream":%v`, tc.body, stream)
			for _, limit := range []string{tc.limited, `,"ignore_eos":true` + tc.limited} {
				answer, all := s.ask(t, "POST", path, body+limit+"}")
				if answer.StatusCode != 200 || strings.Contains(all, "repeated_piece") {
					t.Errorf("%s with a limit: %s %s", path, answer.Status, all)
				}
			}
			answer, all := s.ask(t, "POST", path, body+tc.free+"}")
			if answer.StatusCode != 200 || !strings.Contains(all, `"repeated_piece":7`) || !strings.Contains(all, tc.finish) {
				t.Errorf("%s: want a piece of 7 and %s in %s %s", path, tc.finish, answer.Status, all)
			}
		}
		if n := strings.Count(log.String(), "repeated_piece=7"); n != 2 {
			t.Errorf("%s: %d lines of the log say it: %s", path, n, log.String())
		}
	}
}

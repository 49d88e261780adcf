package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// growing is the text of an answer that still comes.
type growing struct {
	mu   sync.Mutex
	text strings.Builder
}

func (g *growing) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.Write(p)
}

func (g *growing) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.String()
}

// more waits until n more bytes have come.
func (g *growing) more(ctx context.Context, n int) {
	want := len(g.String()) + n
	testkit.Until(func() bool { return len(g.String()) >= want || ctx.Err() != nil })
}

// slowly asks for a stream whose request waits for a place, is admitted and has a long prompt, each so long that the stream has to be kept
// alive, and then ends as then does.
func slowly(t *testing.T, path, body string, then script) (status int, all string) {
	t.Helper()
	const silence = 100 // bytes: several comments, or one event and the beginning of another
	got := new(growing)
	s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		few := silence
		if strings.HasPrefix(path, "/api/") {
			few = 3 // spaces
		}
		got.more(ctx, few)
		if err := tandem.Admitted(ctx); err != nil {
			return tandem.Result{}, err
		}
		for range 4 {
			got.more(ctx, few)
		}
		return then(ctx, r, sink)
	}), func(c *Config) { c.Ping = 5 * time.Millisecond })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "POST", s.url+path, strings.NewReader(body))
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(got, answer.Body); err != nil {
		t.Error(err)
	}
	return answer.StatusCode, got.String()
}

// TestKeepAlive: nothing comes before the first event of each API but comments, or in lines of JSON spaces; what keeps a stream alive
// later is an event that its clients know, with a number that rises. An error comes in the form on which clients of that API raise.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	const ask = `"messages":[{"role":"user","content":"a"}],"max_tokens":3,"stream":true}`
	for path, tc := range map[string]struct{ body, first, alive, error string }{
		"/v1/chat/completions": {`{` + ask, `"delta":{"role":"assistant"`, "", `event: error` + "\n" + `data: {"error":{`},
		"/v1/completions":      {`{"prompt":"a","max_tokens":3,"stream":true}`, `"text":`, "", `event: error` + "\n" + `data: {"error":{`},
		"/v1/responses": {`{"input":"a","max_output_tokens":3,"stream":true}`, `"type":"response.created"`, `"type":"response.in_progress"`,
			`{"type":"error","sequence_number":`},
		"/v1/messages":  {`{` + ask, `"type":"message_start"`, `"type":"ping"`, `data: {"type":"error","error":{`},
		"/completion":   {`{"prompt":"a","n_predict":3,"stream":true}`, `"content":`, "", `data: {"error":{`},
		"/infill":       {`{"input_prefix":"a","input_suffix":"b","n_predict":3,"stream":true}`, `"content":`, "", `data: {"error":{`},
		"/api/chat":     {`{"messages":[{"role":"user","content":"a"}]}`, `"message":`, "", `{"error":"`},
		"/api/generate": {`{"prompt":"a"}`, `"response":`, "", `{"error":"`},
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			status, all := slowly(t, path, tc.body, hello)
			data := kept(t, path, all)
			if status != 200 || !strings.Contains(data[0], tc.first) {
				t.Fatalf("%d, first %s, want %s", status, data[0], tc.first)
			}
			alive := 0
			for tc.alive != "" && strings.Contains(data[1+alive], tc.alive) {
				alive++
			}
			if tc.alive != "" && alive < 2 {
				t.Errorf("%d events keep the stream alive: %s", alive, data[:3])
			}
			status, all = slowly(t, path, tc.body, failing(tandem.Errorf("generate", tandem.Unavailable, "no verifier")))
			if kept(t, path, all); status != 200 || !strings.Contains(all, tc.error) || !strings.Contains(all, "no verifier") {
				t.Errorf("%d: want %s in %s", status, tc.error, all)
			}
			if failed := strings.Contains(all, `"type":"response.failed"`); failed != (path == "/v1/responses") {
				t.Errorf("an answer that failed: %v", failed)
			}
		})
	}
}

// kept returns the events' data, or the lines, of a stream that was kept alive, and checks what stands before the first.
func kept(t *testing.T, path, all string) (data []string) {
	t.Helper()
	if strings.HasPrefix(path, "/api/") {
		data = strings.Split(strings.TrimSuffix(all, "\n"), "\n")
		if !strings.HasPrefix(all, "   ") {
			t.Errorf("it begins with %.20q, want spaces", all)
		}
	} else {
		before, _, _ := strings.Cut(all, "data: ")
		for line := range strings.Lines(before) {
			if line != ": ping\n" && !strings.HasPrefix(line, "id: ") && !strings.HasPrefix(line, "event: ") {
				t.Errorf("%q comes before the first event", line)
			}
		}
		if !strings.HasPrefix(all, ": ping\n: ping\n") {
			t.Errorf("it begins with %.20q, want comments", all)
		}
		for _, e := range events(t, strings.NewReader(all)) {
			data = append(data, e.data)
		}
	}
	for i, d := range data {
		var e struct {
			Number *int `json:"sequence_number"`
		}
		if err := json.Unmarshal([]byte(d), &e); err != nil && d != "[DONE]" {
			t.Errorf("event %d: %v: %q", i, err, d)
		} else if path == "/v1/responses" && (e.Number == nil || *e.Number != i) {
			t.Errorf("event %d has another number: %.80s", i, d)
		}
	}
	return data
}

// TestHeldCall: while a call that has begun is not complete, and so nothing of it is told, each API's stream is kept alive; then the call
// comes whole.
func TestHeldCall(t *testing.T) {
	t.Parallel()
	const (
		ask   = `{"messages":[{"role":"user","content":"a"}],"max_tokens":300,"stream":true,"tools":[`
		f     = `{"type":"function","function":{"name":"f"}}]}`
		begun = "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x"
	)
	for path, tc := range map[string]struct{ body, alive, call string }{
		"/v1/chat/completions": {ask + f, "\n: ping\n: ping\n: ping\n", `"arguments":"{\"a\": \"x`},
		"/v1/responses": {`{"input":"a","max_output_tokens":300,"stream":true,"tools":[{"type":"function","name":"f"}]}`,
			`"type":"response.in_progress"`, `"delta":"{\"a\": \"x`},
		"/v1/messages": {ask + `{"name":"f","input_schema":{"type":"object"}}]}`, `"type":"ping"`, `"partial_json":"{\"a\": \"x`},
		"/api/chat":    {`{"messages":[{"role":"user","content":"a"}],"tools":[` + f, "\n   ", `"arguments":{"a":"x`},
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			got, text := new(growing), ""
			s := serve(t, written(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
				piece := func(text string) error {
					return sink.Delta(tandem.Delta{Text: text, Tokens: []tandem.Token{'x'}, Origins: []tandem.Origin{0}})
				}
				err := errors.Join(tandem.Admitted(ctx), sink.Started(tandem.Started{Request: r}), piece(begun))
				want := 4
				testkit.Until(func() bool {
					if err != nil || strings.Count(text, tc.alive) >= want || ctx.Err() != nil {
						return true
					}
					err = piece("x") // the model writes all the while
					if _, text, _ = strings.Cut(got.String(), "I look."); !strings.Contains(tc.alive, `"`) {
						want = 1
					}
					return false
				})
				err = errors.Join(err, piece("\"}}\n</tool_call>"))
				return tandem.Result{Identity: "fp_1", Finish: tandem.FinishStop, OutputTokens: 3}, err
			}), func(c *Config) {
				large(c)
				c.Ping = 5 * time.Millisecond
			})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			r, _ := http.NewRequestWithContext(ctx, "POST", s.url+path, strings.NewReader(tc.body))
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			if _, err := io.Copy(got, answer.Body); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(text, "xx") || !strings.Contains(text, tc.alive) {
				t.Errorf("while the call is held the stream says %q: want %q", text, tc.alive)
			}
			_, rest, _ := strings.Cut(got.String(), "I look.")
			if strings.Count(rest, tc.call) != 1 {
				t.Errorf("then %s: want one call with %s", rest, tc.call)
			}
		})
	}
}

// TestAtOnce: in the Responses and the Messages API the first event comes when the request is admitted, without any wait; what is refused
// before has its status.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	for path, body := range map[string]string{"/v1/responses": `{"input":"a","stream":true}`,
		"/v1/messages": `{"messages":[{"role":"user","content":"a"}],"max_tokens":3,"stream":true}`} {
		got := make(chan bool)
		s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
			if err := tandem.Admitted(ctx); err != nil {
				return tandem.Result{}, err
			}
			select {
			case <-got:
			case <-ctx.Done():
				return tandem.Result{}, ctx.Err()
			}
			return hello(ctx, r, sink)
		}), func(c *Config) { c.Ping = time.Hour })
		r, _ := http.NewRequestWithContext(t.Context(), "POST", s.url+path, strings.NewReader(body))
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		first := make([]byte, 32)
		if _, err := io.ReadFull(answer.Body, first); err != nil || answer.StatusCode != 200 {
			t.Errorf("%s: %s %q %v", path, answer.Status, first, err)
		}
		close(got)
		rest, _ := io.ReadAll(answer.Body)
		for _, once := range []string{`{"type":"response.created"`, `{"type":"response.in_progress"`, `{"type":"message_start"`} {
			if n := strings.Count(string(first)+string(rest), once); n > 1 {
				t.Errorf("%s: %d × %s", path, n, once)
			}
		}
		full := serve(t, failing(tandem.Errorf("generate", tandem.Exhausted, "queue full")), nil)
		if refused, _ := full.ask(t, "POST", path, body); refused.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%s: a full queue is %s", path, refused.Status)
		}
	}
}

package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/access"
)

// failing is a generator that fails before it begins.
func failing(err error) script {
	return func(context.Context, tandem.Request, tandem.Sink) (tandem.Result, error) { return tandem.Result{}, err }
}

// TestErrors gives each kind of error its status, in the same form whether or not a stream was asked for.
func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		kind   tandem.Kind
		retry  time.Duration
		status int
		typ    string
		after  string
	}{
		{tandem.Invalid, 0, 400, "invalid_request_error", ""},
		{tandem.Unsupported, 0, 400, "invalid_request_error", ""},
		{tandem.Exhausted, 2500 * time.Millisecond, 429, "rate_limit_error", "3"},
		{tandem.Exhausted, 0, 429, "rate_limit_error", "1"},
		{tandem.Unavailable, 0, 503, "unavailable_error", "1"},
		{tandem.Deadline, 0, 504, "timeout_error", ""},
		{tandem.Internal, 0, 500, "server_error", ""},
		{tandem.Corrupt, 0, 500, "server_error", ""},
	} {
		s := serve(t, failing(&tandem.Error{Op: "generate", Kind: tc.kind, Err: errors.New("secret stack"), RetryAfter: tc.retry}), nil)
		for _, stream := range []string{"false", "true"} {
			p := s.refused(t, "POST", "/v1/completions", `{"prompt":"a","stream":`+stream+`}`)
			if p.status != tc.status || p.Type != tc.typ || p.header.Get("Retry-After") != tc.after {
				t.Errorf("%v, stream %s: %+v, want %d %s", tc.kind, stream, p, tc.status, tc.typ)
			}
			if hidden := tc.status == 500; hidden == strings.Contains(p.Message, "secret") {
				t.Errorf("%v: message %q", tc.kind, p.Message)
			}
		}
		if n := s.cfg.Counters.Snapshot()[fmt.Sprintf("http.requests.%d", tc.status)]; n != 2 {
			t.Errorf("%v: %d answers of %d are counted, want 2", tc.kind, n, tc.status)
		}
	}
}

// TestPanics keeps a panic to its own request.
func TestPanics(t *testing.T) {
	var log bytes.Buffer
	s := serve(t, script(func(context.Context, tandem.Request, tandem.Sink) (tandem.Result, error) { panic("boom") }), func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Describe = func(context.Context) public.Description { panic("bang") }
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound) // it is held back
			panic("bing")
		})
	})
	for path, body := range map[string]string{"/v1/completions": `{"prompt":"a"}`, "/tandem/v1/describe": "", "/metrics": ""} {
		method := "GET"
		if body != "" {
			method = "POST"
		}
		if p := s.refused(t, method, path, body); p.status != 500 || strings.Contains(p.Message, "boom") {
			t.Errorf("%s: %+v", path, p)
		}
	}
	if answer, _ := s.ask(t, "GET", "/livez", ""); answer.StatusCode != 200 {
		t.Error("the server did not survive: ", answer.Status)
	}
	if n := s.cfg.Counters.Snapshot()["http.panics"]; n != 3 || !strings.Contains(log.String(), "boom") ||
		!strings.Contains(log.String(), "bang") || !strings.Contains(log.String(), "bing") {
		t.Errorf("%d panics are counted, the log is %s", n, log.String())
	}
}

// endless says "x" until its context ends, and tells how it ended.
func endless(ended chan<- error) script {
	return func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		err := sink.Started(tandem.Started{Request: r})
		for err == nil {
			if err = sink.Delta(tandem.Delta{Text: strings.Repeat("x", 100), Tokens: []tandem.Token{'x'},
				Origins: []tandem.Origin{0}}); err == nil && ctx.Err() != nil {
				err = tandem.Errorf("generate", tandem.KindOf(context.Cause(ctx)), "ended: %w", context.Cause(ctx))
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Microsecond): // else the text grows without end
			}
		}
		ended <- err
		return tandem.Result{}, err
	}
}

// TestCancellation closes the connection of a stream, and that of a request that waits for its answer.
func TestCancellation(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{true, false} {
		begun, ended := make(chan struct{}, 3), make(chan error, 3)
		s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
			begun <- struct{}{}
			return endless(ended)(ctx, r, sink)
		}), nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, "POST", s.url+"/v1/completions",
			strings.NewReader(fmt.Sprintf(`{"prompt":"a","n":3,"stream":%v}`, stream)))
		go func() {
			for range 3 {
				select {
				case <-begun:
				case <-ctx.Done():
				}
			}
			cancel()
		}()
		if answer, err := http.DefaultClient.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
		for range 3 {
			select {
			case err := <-ended:
				if tandem.KindOf(err) != tandem.Canceled {
					t.Errorf("stream %v: ended with %v", stream, err)
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("stream %v: the generation goes on", stream)
			}
		}
		testkit.Eventually(t, "the request to be counted as one whose client left",
			func() bool { return s.cfg.Counters.Snapshot()["http.requests.499"] == 1 })
	}
}

// TestStalledClient takes nothing from a stream: it is given up, and others go on undisturbed.
func TestStalledClient(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 2)
	s := serve(t, endless(ended), func(c *Config) { c.Stall = 300 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	body := `{"prompt":"a","stream":true}`
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	select {
	case err := <-ended:
		if tandem.KindOf(err) != tandem.Deadline {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a client that takes nothing is waited for")
	}
}

// TestSlowClients leaves requests half sent: their connections are closed in time, and a request beside them is answered.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	s := serve(t, script(nil), func(c *Config) { c.Body = 500 * time.Millisecond })
	for _, sent := range []string{
		"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prompt\":",
		"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{\"prompt\":",
		"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"pro\r\n",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, sent)
		begun := time.Now()
		_ = conn.SetReadDeadline(begun.Add(30 * time.Second))
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		all, _ := io.ReadAll(answer.Body)
		if p := refusal(t, answer, string(all)); p.status != 408 || p.Code != "body_timeout" || !answer.Close {
			t.Errorf("%q: %+v, closed %v", sent, p, answer.Close)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the connection goes on: %v", err)
		}
	}
	if answer, _ := s.ask(t, "POST", "/v1/completions", `{"prompt":"a"}`); answer.StatusCode != 200 {
		t.Error(answer.Status)
	}
}

// TestHugeBody sends 100 MB, announced and not.
func TestHugeBody(t *testing.T) {
	t.Parallel()
	s := serve(t, script(nil), nil)
	for _, announced := range []bool{true, false} {
		var read atomic.Int64
		body := io.LimitReader(readerFunc(func(p []byte) (int, error) {
			for i := range p {
				p[i] = ' '
			}
			read.Add(int64(len(p)))
			return len(p), nil
		}), 100e6)
		r, _ := http.NewRequestWithContext(t.Context(), "POST", s.url+"/v1/completions", body)
		if announced {
			r.ContentLength = 100e6
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		all, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if p := refusal(t, answer, string(all)); p.status != 413 || p.Code != "body_too_large" || read.Load() > 32e6 {
			t.Errorf("announced %v: %+v after %d bytes", announced, p, read.Load())
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestUndisturbed sends all kinds of bad requests while a stream runs: it stays what it is.
func TestUndisturbed(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		if r.MaxTokens != 40 {
			return hello(ctx, r, sink)
		}
		return hello(ctx, r, pausing{sink, release})
	}), nil)
	var streamed string
	var wg sync.WaitGroup
	wg.Go(func() {
		_, streamed = s.ask(t, "POST", "/v1/completions", `{"prompt":"a","stream":true,"max_tokens":40,"seed":0}`)
	})
	bad := []string{``, `{`, `{"prompt":"a","temperature":NaN}`, "{\"prompt\":\"\xff\"}", strings.Repeat("[", 1e5),
		`{"prompt":"a","tools":[1]}`,
		`{"prompt":"` + strings.Repeat("a", 1e5) + `"}`, `{"prompt":"a","n":99}`}
	for i := range 40 {
		if p := s.refused(t, "POST", "/v1/completions", bad[i%len(bad)]); p.status != 400 && p.status != 413 {
			t.Errorf("%.30s: %+v", bad[i%len(bad)], p)
		}
		release <- struct{}{}
	}
	wg.Wait()
	text := ""
	for _, e := range events(t, strings.NewReader(streamed)) {
		if strings.HasPrefix(e.data, "{") {
			text += object(t, e.data)["choices"].([]any)[0].(map[string]any)["text"].(string)
		}
	}
	if want := strings.Repeat("hello ", 7)[:40]; text != want {
		t.Errorf("the stream says %q, want %q", text, want)
	}
}

// pausing is a sink that waits before each piece.
type pausing struct {
	tandem.Sink
	next <-chan struct{}
}

func (p pausing) Delta(d tandem.Delta) error {
	<-p.next
	return p.Sink.Delta(d)
}

// TestSeedsAndTenants looks at what the generator is asked for.
func TestSeedsAndTenants(t *testing.T) {
	keys, err := access.New([]string{"one", "two"})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var asked []tandem.Request
	s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		mu.Lock()
		asked = append(asked, r)
		mu.Unlock()
		return hello(ctx, r, sink)
	}), func(c *Config) { c.Keys = keys })
	seen := map[string]bool{}
	for _, key := range []string{"one", "two"} {
		asked = nil
		s.ask(t, "POST", "/v1/completions", `{"prompt":"a","n":3,"seed":18446744073709551615}`, "Authorization", "Bearer "+key)
		seeds := map[uint64]bool{}
		for _, r := range asked {
			seeds[r.Sampling.Seed] = true
			seen[r.Tenant] = true
		}
		if len(asked) != 3 || asked[0].Sampling.Seed != 1<<64-1 || !seeds[0] || !seeds[1] {
			t.Errorf("seeds %v: want one more for each choice", seeds)
		}
	}
	if len(seen) != 2 || seen[""] {
		t.Errorf("tenants %v: want one for each key", seen)
	}
	asked = nil
	for range 2 {
		s.ask(t, "POST", "/v1/completions", `{"prompt":"a"}`, "Authorization", "Bearer one")
	}
	if asked[0].Sampling.Seed == asked[1].Sampling.Seed {
		t.Error("two requests without a seed have the same")
	}
}

// TestLaterChoicesWait begins the later choices of a prompt once the first has computed it.
func TestLaterChoicesWait(t *testing.T) {
	t.Parallel()
	var running atomic.Int32
	all, other := make(chan struct{}), make(chan struct{}, 4) // run at once; one that is not the first has begun
	s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		if r.Sampling.Seed == 0 {
			select {
			case <-other:
				t.Error("another choice runs")
			case <-time.After(50 * time.Millisecond): // the prompt
			}
		} else {
			other <- struct{}{}
		}
		if running.Add(1) == 4 {
			close(all)
		}
		res, err := hello(ctx, r, sink)
		select {
		case <-all:
		case <-time.After(30 * time.Second):
			t.Errorf("%d choices run at once, want 4", running.Load())
		}
		return res, err
	}), nil)
	if a := s.post(t, "/v1/completions", `{"prompt":"a","n":4,"seed":0}`); len(a["choices"].([]any)) != 4 {
		t.Errorf("%v: want 4 choices", a)
	}
}

package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/access"

	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/httpapi/playground"
)

// locked is a buffer that a server and its test may use at once.
type locked struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// TestRequestLog: one line for each request, with its tokens and the tenant's name, and nothing of keys and texts.
func TestRequestLog(t *testing.T) {
	var out locked
	keys := keysOf(t, "secret-key")
	s := serve(t, script(nil), func(c *Config) {
		c.Log, c.Keys = slog.New(slog.NewJSONHandler(&out, nil)), keys
		c.Describe = func(context.Context) public.Description { return public.Description{} }
	})
	auth := []string{"Authorization", "Bearer secret-key", "X-Request-Id", "mine"}
	s.ask(t, "POST", "/v1/completions", `{"prompt":"private words","max_tokens":3,"n":2}`, auth...)
	s.ask(t, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"private words"}],"max_tokens":3,"stream":true}`, auth...)
	s.ask(t, "POST", "/v1/completions", `{"prompt":7}`, auth...)
	s.ask(t, "GET", "/api/copy?q=private%20words", "")
	s.ask(t, "GET", "/v1/models/private", "", auth...)
	s.ask(t, "POST", "/v1/completions", `{"prompt":"private words"}`)
	for _, polled := range []string{"/health", "/v1/health", "/livez", "/readyz", "/slots", "/api/ps", "/tandem/v1/describe"} {
		s.ask(t, "GET", polled, "", auth...)
	}
	s.ask(t, "GET", "/tandem/v1/describe", "")
	name, _ := keys.Tenant("Bearer secret-key") // what opens the tenant's part of a prefix store
	tenant := access.LogName(name)
	want := []string{
		`POST /v1/completions 200 14 6 ` + tenant + ` mine`,
		`POST /v1/chat/completions 200 21 3 ` + tenant + ` mine`,
		`POST /v1/completions 400 <nil> <nil> ` + tenant + ` mine`,
		`GET /api/copy 404 <nil> <nil> <nil> req`,
		`GET /v1/models/ 404 <nil> <nil> ` + tenant + ` mine`,
		`POST /v1/completions 401 <nil> <nil> <nil> req`,
		`GET /tandem/v1/describe 401 <nil> <nil> <nil> req`,
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		id, _, _ := strings.Cut(fmt.Sprint(m["request"]), "_")
		got = append(got, fmt.Sprint(m["method"], " ", m["path"], " ", m["status"], " ", m["prompt_tokens"], " ", m["output_tokens"],
			" ", m["tenant"], " ", id))
		if _, ok := m["ms"].(float64); !ok || m["level"] != "INFO" {
			t.Errorf("%s: want the time it took, in ms", line)
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("lines\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if all := out.String(); strings.Contains(all, "private words") || strings.Contains(all, "secret-key") || strings.Contains(all, name) {
		t.Errorf("the log holds a text, a key or a tenant's name: %s", all)
	}
}

// TestRequestLogIsBounded: however many requests come, few lines are written, and they say how many were left out.
func TestRequestLogIsBounded(t *testing.T) {
	var l lineLimit
	now, written, skipped := time.Now(), 0, 0
	for i := range 100_000 {
		if n, ok := l.take(now.Add(time.Duration(i) * 100 * time.Microsecond)); ok { // for 10 s
			written++
			skipped += n
		}
	}
	if written < linesAtOnce+9*linesPerSecond || written > linesAtOnce+10*linesPerSecond+1 {
		t.Errorf("%d lines in 10 s: want %d", written, linesAtOnce+10*linesPerSecond)
	}
	if skipped+l.skipped+written != 100_000 {
		t.Errorf("%d lines, %d left out and %d more: want all counted", written, skipped, l.skipped)
	}
	var out locked
	s := serve(t, script(nil), func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&out, nil)) })
	begun := time.Now()
	for range linesAtOnce + 200 {
		s.ask(t, "GET", "/"+strings.Repeat("x", 300), "")
	}
	if n := len(out.String()); n > (linesAtOnce+200)*400 {
		t.Errorf("%d bytes of log", n)
	}
	most := linesAtOnce + linesPerSecond*int(time.Since(begun)/time.Second+1) + 50
	if n := strings.Count(out.String(), "\n"); n > most {
		t.Errorf("%d lines: want at most %d", n, most)
	}
}

// TestEarlyErrors: what net/http refuses by itself has OpenAI's form too.
func TestEarlyErrors(t *testing.T) {
	s := serve(t, script(nil), func(c *Config) { c.Page = playground.Handler(tandem.DefaultLimits.Strategies) })
	for name, tc := range map[string]struct {
		request string
		status  int
	}{
		"a header too large":      {"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 100<<10) + "\r\n\r\n", 431},
		"no HTTP":                 {"hello\r\n\r\n", 400},
		"no host":                 {"GET / HTTP/1.1\r\n\r\n", 400},
		"an unknown coding":       {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: x\r\n\r\n", 501},
		"an unknown version":      {"GET / HTTP/3.7\r\nHost: localhost\r\n\r\n", 505},
		"an unknown expectation":  {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: tea\r\nContent-Length: 0\r\n\r\n", 417},
		"a page that is not here": {"GET /playground/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
		"no path":                 {"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
			go func() { _, _ = conn.Write([]byte(tc.request)) }()
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			var body bytes.Buffer
			_, err = body.ReadFrom(answer.Body)
			if p := refusal(t, answer, body.String()); err != nil || p.status != tc.status ||
				!strings.HasPrefix(answer.Header.Get("Content-Type"), "application/json") {
				t.Errorf("%+v, %v, %v", p, answer.Header, err)
			}
		})
	}
	for _, path := range []string{"/playground", "/playground/"} {
		if answer, text := s.ask(t, "GET", path, ""); answer.StatusCode != 200 || !strings.Contains(text, "<html") {
			t.Errorf("%s: %s", path, answer.Status)
		}
	}
}

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
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// dial opens a connection that is closed with the test, and sends text on it.
func (s *site) dial(t testing.TB, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.(*net.TCPConn).SetReadBuffer(4096)
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

// age makes all connections that have us wait have done so for longer.
func (s *site) age(by time.Duration) {
	l := s.listener.(*limited)
	l.mu.Lock()
	defer l.mu.Unlock()
	for g := range l.all {
		for _, since := range []*atomic.Int64{&g.owed, &g.writing} {
			if t := since.Load(); t != 0 {
				since.CompareAndSwap(t, t-int64(by))
			}
		}
	}
}

// once asks for path over a connection of its own.
func (s *site) once(t testing.TB, path string) (int, string) {
	t.Helper()
	return rawRequest(t, s, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

// TestConnectionsThatMakeUsWait fills a server with connections of each kind that send or read nothing: others are answered,
// in place of the one that has made us wait longest.
func TestConnectionsThatMakeUsWait(t *testing.T) {
	t.Parallel()
	const room = 4
	post := func(body, announced string) string {
		return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + announced + "\r\n\r\n" + body
	}
	for name, sent := range map[string]string{
		"nothing":              "",
		"half a header":        "GET /livez HTTP/1.1\r\nHost: loc",
		"half a body":          post(`{"prompt":`, "100"),
		"half a large body":    post(`{"prompt":"`+strings.Repeat("a", 100<<10), "1000000"),
		"a stream, not read":   post(`{"prompt":"a","stream":true}`, "28"),
		"the page, not read":   strings.Repeat("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
		"an answer, not read":  strings.Repeat("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 60000)[:2000000],
		"idle after a request": "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flood := script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
				err := sink.Started(tandem.Started{Request: r})
				for err == nil {
					err = sink.Delta(tandem.Delta{Text: strings.Repeat("x", 10000), Tokens: []tandem.Token{'x'}})
				}
				return tandem.Result{}, err
			})
			s := serve(t, flood, func(c *Config) {
				c.MaxConns, c.Body, c.Stall = room, time.Minute, time.Minute
				c.Page = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 100<<10)) })
			})
			for range room {
				if len(sent) < 1<<20 {
					s.dial(t, sent)
				} else {
					c := s.dial(t, "")
					go func() { _, _ = io.WriteString(c, sent) }()
				}
			}
			for range room + 1 {
				testkit.Eventually(t, "a request beside them is answered",
					func() bool { status, _ := s.once(t, "/livez"); return status == 200 })
			}
			if n := s.cfg.Counters.Snapshot()["http.connections.displaced"]; n < 1 {
				t.Error("none of them was closed")
			}
		})
	}
}

// TestConnectionsThatWork: a connection whose generation runs is never closed for another, which is told to come again.
func TestConnectionsThatWork(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var begun sync.WaitGroup
	begun.Add(2)
	s := serve(t, script(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		begun.Done()
		<-release
		return hello(ctx, r, sink)
	}), func(c *Config) { c.MaxConns = 2 })
	var working []net.Conn
	for range 2 {
		working = append(working,
			s.dial(t, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}"))
	}
	begun.Wait()
	s.age(graceTime + time.Second)
	status, body := s.once(t, "/livez")
	if status != 503 || !strings.Contains(body, `"unavailable"`) || !strings.Contains(body, "too many connections") {
		t.Errorf("a third connection: %d %s", status, body)
	}
	if n := s.cfg.Counters.Snapshot(); n["http.connections.refused"] != 1 || n["http.connections.displaced"] != 0 {
		t.Errorf("counted %v", n)
	}
	close(release)
	for _, c := range working {
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		if answer.StatusCode != 200 {
			t.Error(answer.Status)
		}
	}
	testkit.Eventually(t, "idle connections make room", func() bool { status, _ := s.once(t, "/livez"); return status == 200 })
}

// TestWriteDeadlines: who does not read the page, the metrics or an answer in JSON is given up in time.
func TestWriteDeadlines(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 4<<20)
	pipelined := "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
	content := `{"content":"` + strings.Repeat("x", 12<<10) + `","with_pieces":true}`
	for name, sent := range map[string]string{
		"the page":    "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"the metrics": "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"answers":     strings.Repeat(pipelined, 20000),
		"tokens":      fmt.Sprintf("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(content), content),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, script(nil), func(c *Config) {
				c.Stall = 2 * time.Second
				c.Page = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, big) })
				c.Metrics = c.Page
				c.Limits.PromptBytes = 4 << 20
			})
			c := s.dial(t, "")
			go func() { _, _ = io.WriteString(c, sent) }()
			if _, err := c.Read(make([]byte, 1)); err != nil { // and no more
				t.Error(err)
			}
			// the tokens have 3 s: one for each 64 KiB
			testkit.Eventually(t, "its connection is given up", func() bool { return s.connections() == 0 })
		})
	}
}

// connections returns how many there are.
func (s *site) connections() int {
	l := s.listener.(*limited)
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// full is a listener that cannot accept for a while, because too many files are open.
type full struct {
	net.Listener
	times atomic.Int32
}

func (f *full) Accept() (net.Conn, error) {
	if f.times.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return f.Listener.Accept()
}

// TestFewFiles: when too many files are open, idle connections give way, the log says why, and the listener goes on.
func TestFewFiles(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &full{Listener: inner}
	var log bytes.Buffer
	l := newLimited(f, 10, new(tandem.Counters), slog.New(slog.NewTextHandler(&log, nil)))
	defer l.Close()
	connect := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	idle := connect()
	g, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	state(g, http.StateIdle)
	f.times.Store(3)
	connect()
	if _, err := l.Accept(); err != nil {
		t.Fatalf("the listener ends: %v", err)
	}
	_ = idle.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the idle connection: %v: want it closed", err)
	}
	if got := log.String(); !strings.Contains(got, "ulimit -n") || !strings.Contains(got, "too many open files") {
		t.Errorf("log %q: want why", got)
	}
}

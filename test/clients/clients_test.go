// Package clients drives a running tandem with client libraries that programs in Go use. It is a module of its own: the libraries are no
// part of the product.
package clients

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	model  = "gopher-19m-q8_0" // the shipped target
	length = 1024              // of its context
	key    = "a-key-of-these-tests"
	page   = "http://localhost:3000"

	template = `{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}assistant:`
)

var program string // tandem, built from this checkout

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "clients")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "tandem")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./cmd/tandem")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// gateway is a running tandem.
type gateway struct {
	url string // of HTTP, without a path
	log func() string
}

// start runs tandem as a user does, with a chat template, until the test ends.
func start(t *testing.T, flags ...string) gateway {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "chat.jinja")
	if err := os.WriteFile(file, []byte(template), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append([]string{"up", "--json", "--listen", "127.0.0.1:0", "--port", "0", "--chat-template", file,
		"--draft", "lookup", "--run-dir", dir, "--sessions", "2"}, flags...)...)
	cmd.Env = append(os.Environ(), "TANDEM_CACHE="+filepath.Join(dir, "cache"), "TANDEM_API_KEY="+key)
	var log written
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("tandem ended: %v: %s", err, log.String())
		}
	})
	var up struct {
		HTTP string `json:"http"`
	}
	if err := json.NewDecoder(out).Decode(&up); err != nil {
		t.Fatalf("tandem does not start: %v: %s", err, log.String())
	}
	return gateway{up.HTTP, log.String}
}

// written is a buffer that a process and the test may use at once.
type written struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// client returns a client that notes the headers of the last answer, and sends these headers.
func client(seen *http.Header, headers ...string) *http.Client {
	return &http.Client{Timeout: 5 * time.Minute, Transport: transport(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		for i := 0; i < len(headers); i += 2 {
			if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
				r.Host = headers[i+1]
			}
			if headers[i+1] == "" {
				r.Header.Del(headers[i])
			}
		}
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err == nil && seen != nil {
			*seen = answer.Header
		}
		return answer, err
	})}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// whole reports whether an answer without a limit went on to its end.
func whole(finish string, total int) bool {
	return finish == "stop" || finish == "length" && total == length
}

// TestLog: there is one line for each request, as JSON, without keys and texts.
func TestLog(t *testing.T) {
	g := start(t, "--log-format", "json")
	ask(t, g, openAI(g, client(nil)))
	deadline := time.Now().Add(10 * time.Second)
	for !strings.Contains(g.log(), "chat/completions") && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	found := 0
	for line := range strings.Lines(g.log()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if m["path"] == "/v1/chat/completions" && m["status"] == 200.0 && m["tenant"] != "" && m["output_tokens"] == 4.0 {
			found++
		}
	}
	if all := g.log(); found != 1 || strings.Contains(all, key) || strings.Contains(all, "three words") {
		t.Errorf("%d lines: %s", found, all)
	}
}

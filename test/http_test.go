package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"
)

// freeAddr returns an address of loopback that nobody listens on.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// webGroup is a running `tandem up` with HTTP.
type webGroup struct {
	*group
	url string
	key string
}

// template is a chat template for the shipped models, which have none.
const template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"

// upWeb starts `tandem up` with HTTP and a chat template, "" for none.
func upWeb(t testing.TB, template string, flags ...string) *webGroup {
	t.Helper()
	addr := freeAddr(t)
	flags = append([]string{"--http", addr}, flags...)
	if template != "" {
		path := filepath.Join(t.TempDir(), "chat.jinja")
		if err := os.WriteFile(path, []byte(template), 0o600); err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--chat-template", path)
	}
	return &webGroup{group: up(t, flags...), url: "http://" + addr}
}

// ask sends a request as curl does and returns status and body.
func (g *webGroup) ask(t testing.TB, method, path, body string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, g.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if g.key != "" {
		r.Header.Set("Authorization", "Bearer "+g.key)
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	all, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(all)
}

// completion is the part of an answer that tests look at, or of a chunk of one.
type completion struct {
	Choices []struct {
		Text           string                   // of a completion
		Message, Delta struct{ Content string } // of a chat
		Finish         string                   `json:"finish_reason"`
		Logprobs       struct {
			Tokens   []string
			LogProbs []float64            `json:"token_logprobs"`
			Top      []map[string]float64 `json:"top_logprobs"`
		}
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Timings struct {
		PredictedN int `json:"predicted_n"`
		DraftN     int `json:"draft_n"`
	}
}

// complete sends a body that must be answered, at temperature 0 if it does not say otherwise.
func (g *webGroup) complete(t testing.TB, body map[string]any) (c completion) {
	t.Helper()
	if _, says := body["temperature"]; !says {
		body = maps.Clone(body)
		body["temperature"] = 0
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	status, all := g.ask(t, "POST", "/v1/completions", string(raw))
	if status != 200 || json.Unmarshal([]byte(all), &c) != nil {
		t.Fatalf("%s: %d: %s", raw, status, all)
	}
	return c
}

// chunks hands over each chunk of a stream, which must end as one that is whole.
func chunks(stream io.Reader, each func(completion)) error {
	for in := bufio.NewScanner(stream); in.Scan(); {
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		var c completion
		switch {
		case !ok:
		case data == "[DONE]":
			return nil
		case strings.HasPrefix(data, `{"error"`) || json.Unmarshal([]byte(data), &c) != nil:
			return errors.New(data)
		default:
			each(c)
		}
	}
	return io.ErrUnexpectedEOF
}

const story = "// Package heap provides heap operations for any type"

// TestHTTP asks the real processes over HTTP, as curl does, and beside gRPC. The tests in test/clients ask with OpenAI's client.
func TestHTTP(t *testing.T) {
	t.Parallel()
	g := upWeb(t, template)

	t.Run("a chat, whole and streamed", func(t *testing.T) {
		body := `{"messages":[{"role":"system","content":"You write Go."},{"role":"user","content":"func main() {"}],` +
			`"seed":5,"max_tokens":40,"temperature":0.8%s}`
		var whole, last completion
		_, all := g.ask(t, "POST", "/v1/chat/completions", fmt.Sprintf(body, ""))
		if err := json.Unmarshal([]byte(all), &whole); err != nil || len(whole.Choices) != 1 {
			t.Fatalf("%s: %v", all, err)
		}
		text := ""
		_, all = g.ask(t, "POST", "/v1/chat/completions", fmt.Sprintf(body, `,"stream":true,"stream_options":{"include_usage":true}`))
		err := chunks(strings.NewReader(all), func(c completion) {
			for _, choice := range c.Choices {
				text += choice.Delta.Content
			}
			last = c
		})
		if want := whole.Choices[0].Message.Content; err != nil || want == "" || text != want ||
			last.Usage.Completion != whole.Usage.Completion {
			t.Errorf("streamed %q with %+v (%v), whole %q with %+v", text, last.Usage, err, want, whole.Usage)
		}
		status, prompt := g.ask(t, "POST", "/apply-template",
			`{"messages":[{"role":"system","content":"You write Go."},{"role":"user","content":"func main() {"}]}`)
		if want := `{"prompt":"system: You write Go.\nuser: func main() {\nassistant:"}` + "\n"; status != 200 || prompt != want {
			t.Errorf("the template makes %d %s, want %s", status, prompt, want)
		}
	})
	t.Run("the same text as gRPC, with and without speculation", func(t *testing.T) {
		for _, s := range []setting{{0, 0}, {0.8, 7}} {
			want := g.run(t, s.request(story, 48))
			for _, enabled := range []bool{true, false} {
				body := map[string]any{"prompt": story, "max_tokens": 48, "temperature": s.temperature, "seed": s.seed,
					"speculation": map[string]any{"enabled": enabled}}
				if s.temperature > 0 {
					body["top_k"], body["top_p"], body["min_p"] = 100, 0.95, 0
				}
				c := g.complete(t, body)
				if c.Choices[0].Text != want.text || c.Usage.Completion != len(want.tokens) || c.Timings.PredictedN != len(want.tokens) ||
					!enabled && c.Timings.DraftN != 0 {
					t.Errorf("%v, speculation %v: %q, %+v; over gRPC %q", s, enabled, c.Choices[0].Text, c.Timings, want.text)
				}
			}
		}
	})
	t.Run("n is n requests", func(t *testing.T) {
		body := map[string]any{"prompt": story, "max_tokens": 24, "temperature": 1, "seed": 11, "n": 4}
		all := g.complete(t, body)
		delete(body, "n")
		for i, c := range all.Choices {
			body["seed"] = 11 + i
			if one := g.complete(t, body).Choices[0].Text; one != c.Text {
				t.Errorf("choice %d is %q, alone %q", i, c.Text, one)
			}
		}
	})
	t.Run("stop across chunks", func(t *testing.T) { stopsAcrossChunks(t, g) })
	t.Run("logprobs", func(t *testing.T) {
		c := g.complete(t, map[string]any{"prompt": story, "max_tokens": 24, "logprobs": 3}).Choices[0]
		if strings.Join(c.Logprobs.Tokens, "") != c.Text || len(c.Logprobs.Top) != 24 {
			t.Errorf("tokens %q of text %q", c.Logprobs.Tokens, c.Text)
		}
		for i, p := range c.Logprobs.LogProbs { // greedy: each token is the likeliest
			if best, ok := c.Logprobs.Top[i][c.Logprobs.Tokens[i]]; !ok || best != p || p > 0 || len(c.Logprobs.Top[i]) != 3 {
				t.Errorf("token %d, %q, has %v, and the likeliest are %v", i, c.Logprobs.Tokens[i], p, c.Logprobs.Top[i])
			}
		}
	})
	t.Run("logit_bias", func(t *testing.T) {
		_, all := g.ask(t, "POST", "/tokenize", `{"content":"zz","with_pieces":true}`)
		var tokens struct{ Tokens []struct{ ID int } }
		if err := json.Unmarshal([]byte(all), &tokens); err != nil || len(tokens.Tokens) == 0 {
			t.Fatal(all)
		}
		id := fmt.Sprint(tokens.Tokens[len(tokens.Tokens)-1].ID)
		c := g.complete(t, map[string]any{"prompt": story, "max_tokens": 8, "logit_bias": map[string]any{id: 100},
			"logprobs": 0}).Choices[0]
		for _, token := range c.Logprobs.Tokens {
			if token != c.Logprobs.Tokens[0] {
				t.Errorf("a bias of 100 for one token makes %q", c.Logprobs.Tokens)
				break
			}
		}
	})
	t.Run("penalties", func(t *testing.T) {
		plain := g.complete(t, map[string]any{"prompt": "x x x x x x x x", "max_tokens": 32}).Choices[0].Text
		for _, p := range []map[string]any{{"repeat_penalty": 1.8, "repeat_last_n": 64}, {"frequency_penalty": 2, "presence_penalty": 2}} {
			p["prompt"], p["max_tokens"] = "x x x x x x x x", 32
			if got := g.complete(t, p).Choices[0].Text; got == plain {
				t.Errorf("%v changes nothing in %q", p, got)
			}
		}
	})
	t.Run("a closed connection", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, "POST", g.url+"/v1/completions",
			strings.NewReader(`{"prompt":"a","max_tokens":900,"ignore_eos":true,"stream":true,"n":4}`))
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Body.Read(make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
		cancel()
		a.Body.Close()
		testkit.Eventually(t, "no request to run", func() bool {
			_, all := g.ask(t, "GET", "/tandem/v1/describe", "")
			return strings.Contains(all, `"requests.running":0`)
		})
	})
	t.Run("bad requests beside a stream", func(t *testing.T) {
		want := g.run(t, setting{0.8, 3}.request(story, 200))
		var wg sync.WaitGroup
		done := make(chan struct{})
		wg.Go(func() {
			defer close(done)
			body := map[string]any{"prompt": story, "max_tokens": 200, "temperature": 0.8, "seed": 3, "top_k": 100, "top_p": 0.95,
				"min_p": 0}
			if got := g.complete(t, body).Choices[0].Text; got != want.text {
				t.Errorf("beside bad requests %q, alone %q", got, want.text)
			}
		})
		for i := 0; ; i++ {
			bad := []string{"", "{", `{"prompt":"a","temperature":NaN}`, "{\"prompt\":\"\xff\"}", `{"prompt":"a","tools":[1]}`, `{"prompt":"` +
				strings.Repeat("a ", 4000) + `"}`, strings.Repeat("[", 5000)}[i%7]
			if status, all := g.ask(t, "POST", "/v1/completions", bad); status != 400 && status != 413 {
				t.Errorf("%.40s: %d %s", bad, status, all)
			}
			select {
			case <-done:
				wg.Wait()
				return
			default:
			}
		}
	})
	t.Run("a verifier that is killed", func(t *testing.T) {
		pid := g.w.one(t, "verifier")
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the gateway to say that it is not ready", func() bool {
			status, _ := g.ask(t, "GET", "/readyz", "")
			return status == 503
		})
		if status, _ := g.ask(t, "GET", "/livez", ""); status != 200 {
			t.Errorf("livez says %d", status)
		}
		c := g.complete(t, map[string]any{"prompt": story, "max_tokens": 8}) // it waits for the next verifier
		if c.Usage.Completion != 8 {
			t.Errorf("%+v", c)
		}
		if status, all := g.ask(t, "GET", "/health", ""); status != 200 {
			t.Errorf("health says %d: %s", status, all)
		}
	})
}

// stopsAcrossChunks cuts a text at sequences that begin and end anywhere in its tokens: what is left is what stands
// before the first place where one of them is whole, over every front and with and without speculation.
func stopsAcrossChunks(t *testing.T, g *webGroup) {
	text := g.complete(t, map[string]any{"prompt": story, "max_tokens": 40}).Choices[0].Text
	runes := []rune(text)
	for from := 4; from+7 < len(runes); from += 9 {
		sequence := string(runes[from : from+7])
		for _, speculate := range []bool{true, false} {
			body := map[string]any{"prompt": story, "max_tokens": 40, "stop": []string{"\x00never", sequence},
				"speculation": map[string]any{"enabled": speculate}}
			c := g.complete(t, body).Choices[0]
			if want := text[:strings.Index(text, sequence)]; c.Text != want || c.Finish != "stop" {
				t.Errorf("stop %q, speculation %v: %q (%s), want %q", sequence, speculate, c.Text, c.Finish, want)
			}
		}
		body := fmt.Sprintf(`{"prompt":%q,"max_tokens":40,"temperature":0,"stop":%q,"stream":true}`, story, sequence)
		_, all := g.ask(t, "POST", "/v1/completions", body)
		streamed := ""
		err := chunks(strings.NewReader(all), func(c completion) { streamed += c.Choices[0].Text })
		if want := text[:strings.Index(text, sequence)]; err != nil || streamed != want {
			t.Errorf("stop %q, streamed: %q (%v), want %q", sequence, streamed, err, want)
		}
	}
}

// TestHTTPKeys has keys in a file, which no process shows in its arguments, and a model without a template.
func TestHTTPKeys(t *testing.T) {
	t.Parallel()
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("# of tests\n\nsecret-one\n  secret-two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := upWeb(t, "", "--api-keys", keys, "--no-draft")
	for _, pid := range g.w.processes() {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(line, []byte("secret")) {
			t.Errorf("a key stands in the arguments of process %d", pid)
		}
	}
	for key, want := range map[string]int{"": 401, "wrong": 401, "secret-one": 200, "secret-two": 200} {
		g.key = key
		if status, all := g.ask(t, "POST", "/v1/completions", `{"prompt":"a","max_tokens":2}`); status != want {
			t.Errorf("key %q: %d %s, want %d", key, status, all, want)
		}
		if status, all := g.ask(t, "GET", "/readyz", ""); status != 200 {
			t.Errorf("readyz: %d %s", status, all)
		}
	}
	g.key = "secret-one"
	if status, all := g.ask(t, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}]}`); status != 400 ||
		!strings.Contains(all, "--chat-template") {
		t.Errorf("a chat without a template: %d %s", status, all)
	}
}

// TestHTTPTemplateThatLoops gives a template without an end: chats are refused, and everything else goes on.
func TestHTTPTemplateThatLoops(t *testing.T) {
	g := upWeb(t, "{% for i in range(1000000000) %}{% for j in range(1000000000) %}x{% endfor %}{% endfor %}", "--no-draft")
	begun := time.Now()
	if status, all := g.ask(t, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}]}`); status != 400 ||
		!strings.Contains(all, "template") {
		t.Errorf("%d %s", status, all)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("the template was run for %v", took)
	}
	g.complete(t, map[string]any{"prompt": "a", "max_tokens": 2})
}

// TestHTTPFlags refuses flags before any process is started.
func TestHTTPFlags(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sock := "unix://" + filepath.Join(dir, "g")
	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"--http", "0.0.0.0:1"}, "--api-key"},
		{[]string{"--http", "nonsense"}, "host:port"},
		{[]string{"--http", l.Addr().String()}, "in use"},
		{[]string{"--chat-template", write("broken", "{% for %}")}, "--chat-template"},
		{[]string{"--chat-template", filepath.Join(dir, "absent")}, "no such file"},
		{[]string{"--chat-template-kwargs", "[1]"}, "--chat-template-kwargs: the value is an array: want a JSON object"},
		{[]string{"--chat-template-kwargs", `{"messages": []}`}, "--chat-template-kwargs: messages cannot be set"},
		{[]string{"--chat-template-kwargs", `{"a": `}, "--chat-template-kwargs"},
		{[]string{"--api-keys", filepath.Join(dir, "absent")}, "no such file"},
		{[]string{"--api-keys", write("empty", "# none\n")}, "holds no key"},
		{[]string{"--api-key", "with space"}, "visible ASCII"},
	} {
		args := append([]string{"up", "--listen", sock, "--http", "off", "--no-draft", "--target", targetModel}, tc.args...)
		e := w.run(args...)
		if e.code == 0 || !strings.Contains(e.stderr, tc.says) {
			t.Errorf("%v: code %d, %s: want %q", tc.args, e.code, e.stderr, tc.says)
		}
	}
}

// TestHTTPTermUnderLoad stops `up` while requests over HTTP run: all are answered.
func TestHTTPTermUnderLoad(t *testing.T) {
	g := upWeb(t, "", "--sessions", "4", "--grace", "25s")
	want := g.complete(t, map[string]any{"prompt": story, "max_tokens": 200, "ignore_eos": true}).Choices[0].Text
	var wg sync.WaitGroup
	var mu sync.Mutex
	begun := 0
	for range 6 {
		wg.Go(func() {
			text := ""
			a, err := http.Post(g.url+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(
				`{"prompt":%q,"max_tokens":200,"temperature":0,"ignore_eos":true,"stream":true}`, story)))
			if err == nil {
				err = chunks(a.Body, func(c completion) {
					if text == "" {
						mu.Lock()
						begun++
						mu.Unlock()
					}
					text += c.Choices[0].Text
				})
				a.Body.Close()
			}
			if err != nil || text != want {
				t.Errorf("ended with %v after %q", err, text)
			}
		})
	}
	testkit.Eventually(t, "output of every session that there is room for", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return begun >= 4
	})
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if _, err := http.Get(g.url + "/livez"); err == nil {
		t.Error("somebody is let in after SIGTERM")
	}
}

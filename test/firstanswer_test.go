package test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/modelfile/hub/hubtest"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// timed keeps what is written to it, and when each piece came.
type timed struct {
	begun time.Time

	mu    sync.Mutex
	all   bytes.Buffer
	first time.Duration // when the first byte came
	lines []string      // each with its time
}

// Write implements io.Writer.
func (w *timed) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := time.Since(w.begun)
	if w.all.Len() == 0 {
		w.first = at
	}
	w.lines = append(w.lines, at.Round(time.Millisecond).String()+" "+strings.TrimSpace(string(p)))
	return w.all.Write(p)
}

// TestFirstAnswer: on a machine with the program alone, one command fetches a model from a hub that sends 10 MB/s in total, and answers.
// The first token comes within a minute, of which the transfer takes 49.1 s.
func TestFirstAnswer(t *testing.T) {
	mayBeSlow(t)
	const rate = 10e6 // bytes per second
	model, err := os.ReadFile(testkit.RealModel(t, testkit.Qwen05))
	if err != nil {
		t.Fatal(err)
	}
	hub := hubtest.New(t)
	hub.Add("qwen/coder", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", model)
	hub.Set(hubtest.Faults{Rate: rate})
	w, home := newWorld(t), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := w.command(ctx, "run", "hf:qwen/coder", "What is a mutex? Answer in two sentences.")
	cmd.Env = append(cmd.Env, "HOME="+home, "XDG_CACHE_HOME=", "XDG_STATE_HOME=", "HF_HOME="+filepath.Join(home, "hf"), "HF_HUB_CACHE=",
		"OLLAMA_MODELS=", "HF_ENDPOINT="+hub.URL, "NO_PROXY=*")
	begun := time.Now()
	out, said := &timed{begun: begun}, &timed{begun: begun}
	cmd.Stdout, cmd.Stderr = out, said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, said.all.String())
	}
	transfer := time.Duration(float64(len(model)) / rate * float64(time.Second))
	t.Logf("first token after %v, of which the transfer takes %v; all after %v\n%s\nanswer: %s", out.first, transfer, time.Since(begun),
		strings.Join(said.lines, "\n"), out.all.String())
	if out.first < transfer || out.first > time.Minute {
		t.Errorf("the first token came after %v: want at most a minute, and the transfer takes %v", out.first, transfer)
	}
	answer := strings.TrimSpace(out.all.String())
	if !strings.Contains(strings.ToLower(answer), "mutex") || !strings.HasSuffix(answer, ".") {
		t.Errorf("answered %q: want whole sentences about a mutex", answer)
	}
	if !regexp.MustCompile(`[0-9.]+ ?(×|times) `).MatchString(said.all.String()) {
		t.Errorf("said %q: want a line that says what drafts brought", said.all.String())
	}
	if sent := hub.Sent(); sent > int64(len(model))+1<<20 {
		t.Errorf("%d bytes were sent for a file of %d", sent, len(model))
	}
}

// TestFetchedDraft: the family's small model is fetched behind the first answer, while the talk goes on, and the next start drafts with it.
func TestFetchedDraft(t *testing.T) {
	mayBeSlow(t)
	hub, w, home := hubtest.New(t), newWorld(t), t.TempDir()
	const target = "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"
	for repo, file := range map[string]string{target: testkit.Qwen15, "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF": testkit.Qwen05} {
		b, err := os.ReadFile(testkit.RealModel(t, file))
		if err != nil {
			t.Fatal(err)
		}
		hub.Add(repo, file, b)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	run := func(in io.Reader, said io.Writer, words ...string) (answer string) {
		t.Helper()
		args := []string{"run", "hf:" + target, "--temperature", "0", "--max-tokens", "24", "--ctx", "2048"}
		cmd := w.command(ctx, append(args, words...)...)
		cmd.Env = append(cmd.Env, "HOME="+home, "XDG_CACHE_HOME=", "XDG_STATE_HOME=", "HF_HOME="+filepath.Join(home, "hf"), "HF_HUB_CACHE=",
			"OLLAMA_MODELS=", "HF_ENDPOINT="+hub.URL, "NO_PROXY=*")
		var out bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, said
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		return strings.TrimSpace(out.String())
	}
	const question = "What is a mutex?"
	in, typed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	first := &awaited{of: "the next start drafts with it", then: func() { _ = typed.Close() }}
	if _, err := io.WriteString(typed, question+"\n"); err != nil {
		t.Fatal(err)
	}
	plain := run(in, first)
	var said bytes.Buffer
	drafted := run(nil, &said, question)
	if plain == "" || drafted != plain {
		t.Errorf("answered %q with the draft: want %q", drafted, plain)
	}
	if !strings.Contains(said.String(), "the small model of Qwen2.5-Coder") {
		t.Errorf("the next start said %q", said.String())
	}
}

// awaited calls then once text was written to it.
type awaited struct {
	of   string
	then func()
	all  bytes.Buffer
}

// Write implements io.Writer.
func (a *awaited) Write(p []byte) (int, error) {
	a.all.Write(p)
	if a.then != nil && strings.Contains(a.all.String(), a.of) {
		a.then()
		a.then = nil
	}
	return len(p), nil
}

// String returns all that was written.
func (a *awaited) String() string { return a.all.String() }

// TestPullOverHTTP: a client of a gateway that allows it fetches a model from the hub and removes it; the served one answers meanwhile.
func TestPullOverHTTP(t *testing.T) {
	model, err := os.ReadFile("../models/gopher-draft-go-f16.gguf")
	if err != nil {
		t.Fatal(err)
	}
	hub, home := hubtest.New(t), t.TempDir()
	hub.Add("org/repo", "m-F16.gguf", model)
	for name, value := range map[string]string{"HF_HOME": home, "HF_HUB_CACHE": "", "HF_ENDPOINT": hub.URL, "NO_PROXY": "*",
		"OLLAMA_MODELS": filepath.Join(home, "ollama")} {
		t.Setenv(name, value)
	}
	g := upWeb(t, "", "--no-draft", "--allow-pull", "100MiB")
	for _, call := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/api/pull", `{"model":"hf:org/repo"}`, 200, `{"status":"success"}`},
		{"POST", "/api/pull", `{"model":"hf:org/repo","stream":false}`, 200, `{"status":"success"}`},
		{"POST", "/v1/completions", `{"prompt":"func ","max_tokens":2}`, 200, "text_completion"},
		{"DELETE", "/api/delete", `{"model":"hf:org/repo"}`, 200, ""},
		{"DELETE", "/api/delete", `{"model":"hf:org/repo"}`, 404, "was not pulled"},
	} {
		if status, all := g.ask(t, call.method, call.path, call.body); status != call.status || !strings.Contains(all, call.says) {
			t.Errorf("%s %s: %d %s: want %d, %q", call.path, call.body, status, all, call.status, call.says)
		}
	}
}

// TestRepositoryDraft: a draft in the target's repository is fetched behind the first answer of run and up, and the next start drafts with
// it. One that was made for another model is named and left for the next; a projector is left.
func TestRepositoryDraft(t *testing.T) {
	hub, dir := hubtest.New(t), t.TempDir()
	f := family.Golden("qwen2")
	target := f.Write(t, dir)
	names, err := engine.Identify(t.Context(), target, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	add := func(name, path string) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		hub.Add("org/repo", name, b)
	}
	draft := func(lineage string) string {
		return family.Draft(family.DraftShape{Kind: "eagle3", Taps: []int{-1}, Bare: -1, Tokens: f.Vocab - 10, Output: true}, f, lineage,
			names.Vocabulary, 1).Write(t, t.TempDir())
	}
	add("m-Q8_0.gguf", target)
	add("mmproj-F16.gguf", target)
	add("eagle3-m-Q8_0.gguf", draft(strings.Repeat("0", len(names.Lineage))))
	add("eagle3-m-BF16.gguf", draft(names.Lineage))
	const left, done = "eagle3-m-Q8_0.gguf is not fetched: ", "eagle3-m-BF16.gguf was fetched: the next start drafts with it"
	for _, command := range []string{"run", "up"} {
		t.Run(command, func(t *testing.T) {
			w, home := newWorld(t), t.TempDir()
			env := []string{"HOME=" + home, "XDG_CACHE_HOME=", "XDG_STATE_HOME=", "HF_HOME=" + filepath.Join(home, "hf"), "HF_HUB_CACHE=",
				"OLLAMA_MODELS=", "HF_ENDPOINT=" + hub.URL, "NO_PROXY=*"}
			start := func(of string) (said string) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				in, typed, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer in.Close()
				defer typed.Close()
				heard := &awaited{of: of, then: cancel}
				args := []string{command, "hf:org/repo", "--ctx", "512"}
				if command == "up" {
					args = append(args, "--listen", "unix://"+filepath.Join(w.tmp, "g.sock"), "--http", "off")
				}
				cmd := w.command(ctx, args...)
				cmd.Env, cmd.Stdin, cmd.Stderr = append(cmd.Env, env...), in, heard
				cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
				if command == "run" {
					_, err = io.WriteString(typed, "ab\n")
				} else {
					cmd.Stdout = &awaited{of: "stop with", then: func() {
						go w.ok("generate", "--addr", "unix://"+filepath.Join(w.tmp, "g.sock"), "--prompt", "ab", "--max-tokens", "2")
					}}
				}
				if err == nil {
					err = cmd.Run()
				}
				if !strings.Contains(heard.String(), of) {
					t.Fatalf("%v: said %q: want %q", err, heard, of)
				}
				return heard.String()
			}
			if said := start(done); !strings.Contains(said, left) || !strings.Contains(said, "mmproj-F16.gguf") {
				t.Errorf("said %q: want %q and the projector", said, left)
			}
			hub.Asked()
			start("eagle3-m-BF16.gguf: it lies beside the target")
			if asked := hub.Asked(); len(asked) > 0 {
				t.Errorf("the next start asked the server: %v", asked)
			}
		})
	}
}

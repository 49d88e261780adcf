package test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/test/testkit"
)

// stopped is how long a verifier is stopped before it reads a prompt: longer than a client takes to start, and then half a second.
const stopped = 2 * time.Second

// pauseVerifier stops the world's verifier while ask sends a prompt, so that reading it takes long, and lets it go on then.
func (w *world) pauseVerifier(ask func()) {
	w.t.Helper()
	pids := w.role("verifier")
	if len(pids) != 1 {
		w.t.Fatalf("verifiers %v: want one", pids)
	}
	_ = syscall.Kill(pids[0], syscall.SIGSTOP)
	ask()
	from := time.Now()
	testkit.Until(func() bool { return time.Since(from) > stopped }) // the time itself is what the gateway counts
	_ = syscall.Kill(pids[0], syscall.SIGCONT)
}

// TestProgressLine: on a terminal a line of run and of generate tells how far the prompt has been read, and is gone when the answer comes.
func TestProgressLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, slave := openTerminal(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := w.command(ctx, "run", "--temperature", "0", "--max-tokens", "12", "--no-history")
	cmd.Env = append(cmd.Env, "NO_COLOR=1", "TERM=dumb")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	write := func(text string) {
		t.Helper()
		if _, err := p.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "a prompt", func() bool { return strings.Contains(p.seen(), ">>> ") })
	from := len(p.seen())
	w.pauseVerifier(func() { write("import (\n") })
	testkit.Eventually(t, "an answer", func() bool { return strings.Contains(p.seen()[from:], "12 tokens,") })
	line := regexp.MustCompile(`\r\x1b\[Kreading the prompt: \d+ of [1-9]\d* tokens, \d+ %[^\n]*\r\x1b\[K`)
	if seen := p.seen()[from:]; !line.MatchString(seen) {
		t.Errorf("seen %q: want a line that is drawn and removed", seen)
	}
	from = len(p.seen())
	write("x := 1\n")
	testkit.Eventually(t, "a quick answer", func() bool { return strings.Contains(p.seen()[from:], "12 tokens,") })
	if seen := p.seen()[from:]; strings.Contains(seen, "reading") {
		t.Errorf("a prompt that is read at once: %q", seen)
	}
	write("/bye\n")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %q", err, p.seen())
	}
}

// TestProgressOfPrompt: both public APIs tell a prompt's progress if they are asked, and generate draws it on a terminal alone.
func TestProgressOfPrompt(t *testing.T) {
	t.Parallel()
	g := upWeb(t, "")
	const body = `{"prompt":"import (","max_tokens":4,"temperature":0,"stream":true,"stream_options":{"include_usage":true},"return_progress":`
	type piece struct {
		Progress *struct{ Total, Cache, Processed, Time int } `json:"prompt_progress"`
		Usage    *struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	asked := make(chan string, 1)
	g.w.pauseVerifier(func() {
		go func() {
			a, err := http.Post(g.url+"/v1/completions", "application/json", strings.NewReader(body+"true}"))
			if err != nil {
				asked <- err.Error()
				return
			}
			defer a.Body.Close()
			all, _ := io.ReadAll(a.Body)
			asked <- string(all)
		}()
	})
	all, told, total := <-asked, 0, 0
	for line := range strings.Lines(all) {
		var p piece
		data, is := strings.CutPrefix(line, "data: ")
		if !is || json.Unmarshal([]byte(data), &p) != nil {
			continue
		}
		if p.Progress != nil {
			told, total = told+1, p.Progress.Total
		}
		if p.Usage != nil && p.Usage.Prompt > 0 && p.Usage.Prompt != total {
			t.Errorf("progress of %d tokens, usage %d", total, p.Usage.Prompt)
		}
	}
	if told == 0 || !strings.HasSuffix(all, "[DONE]\n\n") {
		t.Errorf("over HTTP: %s", all)
	}
	if _, all := g.ask(t, "POST", "/v1/completions", body+"false}"); strings.Contains(all, "prompt_progress") {
		t.Errorf("unasked: %s", all)
	}

	events := ""
	for e, err := range g.client.Generate(t.Context(), client.Request{Prompt: "func main() {", MaxTokens: new(3), Progress: true}) {
		switch {
		case err != nil:
			t.Fatal(err)
		case e.Progress != nil:
			events += "p"
			if p := e.Progress; p.Total < 2 || p.Processed > p.Total || p.Cached > p.Processed {
				t.Errorf("progress %+v", p)
			}
		case e.Started != nil:
			events += "s"
		}
	}
	if !regexp.MustCompile(`^p+s$`).MatchString(events) {
		t.Errorf("events %q: want progress, then the start", events)
	}
	p, slave := openTerminal(t)
	for name, to := range map[string]*os.File{"a terminal": slave, "a file": nil} {
		cmd := g.w.command(t.Context(), "generate", "--addr", g.socket(), "--prompt", "var x of "+name, "--max-tokens", "3")
		var said bytes.Buffer
		if cmd.Stderr = io.Writer(&said); to != nil {
			cmd.Stderr = to
		}
		g.w.pauseVerifier(func() {
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
		})
		if err := cmd.Wait(); err != nil || strings.Contains(said.String(), "reading") {
			t.Errorf("%s: %v: %q", name, err, said.String())
		}
	}
	slave.Close()
	testkit.Eventually(t, "the line", func() bool { return strings.Contains(p.seen(), "reading the prompt: ") })
}

package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"golang.org/x/sys/unix"
)

// TestRun talks with the shipped model by a script.
func TestRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.generate("--prompt", "func (r *Reader) Read(", "--max-tokens", "24", "--no-draft")
	prompt := "func (r *Reader) Read(" + first.Text
	if !strings.HasSuffix(prompt, "\n") {
		prompt += "\n"
	}
	second := w.generate("--prompt", prompt+"// Close closes", "--max-tokens", "24", "--no-draft")
	afresh := w.generate("--prompt", "class Queue:\n    def", "--max-tokens", "24", "--temperature", "0.7", "--seed", "3", "--no-draft",
		"--top-k", "40", "--top-p", "0.95", "--set", "min-p=0.05") // as over HTTP

	script := "func (r *Reader) Read(\n/stats\n\n// Close closes\n/measure\n/clear\n/set temperature 0.7\n/set seed 3\n/set top_p " +
		"7\n/nonsense\n" +
		"/plain\n\"\"\"class Queue:\n    def\"\"\"\n/measure\n/bye\nnever read\n"
	got := w.feed(script, "run", "--temperature", "0", "--max-tokens", "24", "--strategy", "fixed")
	want := ""
	for _, g := range []generation{first, second, afresh} {
		want += g.Text
		if !strings.HasSuffix(g.Text, "\n") {
			want += "\n"
		}
	}
	if got.code != 0 || got.stdout != want {
		t.Errorf("exit code %d, printed %q: want %q", got.code, got.stdout, want)
	}
	said := got.stderr
	for _, want := range []string{"24 tokens, ", " tokens/s", "first token ", "chosen: ", "times as fast",
		"token ids and bytes are equal: 24 tokens, 5 runs",
		"the conversation begins anew", "temperature is 0.7", "/set top_p: ", "/nonsense: there is no such command", "speculation is off",
		", no drafts", "times as fast", "are equal: 24 tokens, 5 runs"} {
		_, after, found := strings.Cut(said, want)
		if !found {
			t.Fatalf("said %q: want %q in it, in this order", got.stderr, want)
		}
		said = after
	}
	if strings.Contains(got.stdout+got.stderr, "\x1b") {
		t.Errorf("colours without a terminal: %q", got.stdout+got.stderr)
	}
}

// TestRunBadInput: bad lines are told and the chat goes on; bad flags end it before anything starts.
func TestRunBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := w.feed("\xff\xfe\n"+strings.Repeat("word ", 3000)+"\nfunc main() {\n", "run", "--max-tokens", "4")
	if got.code != 0 || !strings.Contains(got.stderr, "UTF-8") || !strings.Contains(got.stderr, "1024") ||
		!strings.Contains(got.stderr, "4 tokens,") {
		t.Errorf("exit code %d, said %q: want both lines refused and the third answered", got.code, got.stderr)
	}
	for _, args := range [][]string{{"--temperature", "-1"}, {"--chat-template", "/nowhere"}, {"--target", "/nowhere.gguf"},
		{"--addr", "unix:///tmp/x", "--chat-template", "f"}} {
		if got := w.run(append([]string{"run"}, args...)...); got.code != 2 || strings.Count(strings.TrimSpace(got.stderr), "\n") != 0 {
			t.Errorf("run %s: exit code %d, said %q: want 2 and one line", strings.Join(args, " "), got.code, got.stderr)
		}
	}
}

// TestRunQuestion: a question after the model's name is asked, and the talk ends; flags may stand between them.
func TestRunQuestion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := w.feed("import os\n", "run", "--target", targetModel, "--temperature", "0", "--max-tokens", "5")
	for _, args := range [][]string{
		{targetModel, "import os", "--temperature", "0", "--max-tokens", "5"},
		{targetModel, "--temperature", "0", "--max-tokens", "5", "import", "os"},
	} {
		if got := w.ok(append([]string{"run"}, args...)...); got.stdout != want.stdout || got.stdout == "" {
			t.Errorf("%q: %q: want %q", args, got.stdout, want.stdout)
		}
	}
}

// TestRunEscapes: a model that writes nothing but the beginnings of terminal escapes.
func TestRunEscapes(t *testing.T) {
	t.Parallel()
	const escape = "30=100" // SentencePiece's byte token of 0x1b
	w := newWorld(t)
	if g := w.generate("--prompt", "x", "--max-tokens", "5", "--logit-bias", escape); g.Text != "\x1b\x1b\x1b\x1b\x1b" {
		t.Fatalf("the model writes %q", g.Text)
	}
	if got := w.feed("x\n", "run", "--max-tokens", "5", "--logit-bias", escape); got.code != 0 || got.stdout != "␛␛␛␛␛\n" {
		t.Errorf("exit code %d, printed %q: want pictures of escapes; %s", got.code, got.stdout, got.stderr)
	}
}

// TestGenerateEscapes: on a terminal generate writes escapes as run does, in a file as the model wrote them.
func TestGenerateEscapes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	args := []string{"generate", "--prompt", "x", "--max-tokens", "5", "--logit-bias", "30=100"}
	if got := w.ok(args...); got.stdout != "\x1b\x1b\x1b\x1b\x1b" {
		t.Errorf("to a file: %q", got.stdout)
	}
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer main.Close()
	n, err := unix.IoctlGetInt(int(main.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(main.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer tty.Close()
	for _, json := range []bool{false, true} {
		cmd := w.command(t.Context(), args...)
		if json {
			cmd.Args = append(cmd.Args, "--json")
		}
		cmd.Stdout = tty
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1<<12)
		n, err := main.Read(b)
		if said := string(b[:n]); err != nil || strings.Contains(said, "\x1b") || !json && said != "␛␛␛␛␛\r\n" {
			t.Errorf("on a terminal: %q, error %v", said, err)
		}
	}
}

// TestRunChat: with a template the lines are turns, and no control token comes from what the user says.
func TestRunChat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	template := w.tmp + "/template"
	if err := os.WriteFile(template, []byte("{% for m in messages %}# {{ m.role }}: {{ m.content }}\n{% endfor %}# assistant:"),
		0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(template)
	first := w.generate("--prompt", "# user: What is a reader?\n# assistant:", "--max-tokens", "12", "--no-draft")
	second := w.generate("--prompt", "# user: What is a reader?\n# assistant: "+first.Text+"\n# user: And a writer?\n# assistant:",
		"--max-tokens", "12", "--no-draft")
	got := w.feed("What is a reader?\nAnd a writer?\n", "run", "--temperature", "0", "--max-tokens", "12", "--chat-template", template)
	lines := func(texts ...string) (out string) {
		for _, s := range texts {
			if out += s; !strings.HasSuffix(s, "\n") {
				out += "\n"
			}
		}
		return out
	}
	if want := lines(first.Text, second.Text); got.code != 0 || got.stdout != want {
		t.Errorf("exit code %d, printed %q: want %q; %s", got.code, got.stdout, want, got.stderr)
	}

	// another gateway's chat service answers as well, and its file is not needed here
	addr, stop := w.served("--chat-template", template)
	defer stop()
	for limit, says := range map[string]string{"12": "cut at 12: /set max_tokens", "-1": "the context of 1024 tokens is full",
		"0": "the context"} {
		got := w.feed("What is a reader?\n", "run", "--addr", addr, "--temperature", "0", "--max-tokens", limit)
		if !strings.HasPrefix(got.stdout, first.Text) || !strings.Contains(got.stderr, says) {
			t.Errorf("by --addr with --max-tokens %s: exit code %d, printed %q: want %q first; said %s", limit, got.code, got.stdout,
				first.Text, got.stderr)
		}
	}
}

// served starts up with these arguments, and returns the gateway's address once it serves.
func (w *world) served(args ...string) (addr string, stop func()) {
	w.t.Helper()
	addr = freePort(w.t)
	up := w.command(w.t.Context(), append([]string{"up", "--listen", addr, "--http", "off", "--json"}, args...)...)
	stdout, err := up.StdoutPipe()
	if err == nil {
		err = up.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	stop = func() {
		up.Process.Signal(syscall.SIGTERM)
		up.Wait()
	}
	if err := json.NewDecoder(stdout).Decode(new(map[string]any)); err != nil {
		stop()
		w.t.Fatalf("up --json: %v", err)
	}
	return addr, stop
}

// terminal is a pseudo-terminal in which a command runs.
type terminal struct {
	*os.File
	mu  sync.Mutex
	out bytes.Buffer
}

// openTerminal returns a terminal and its other end, for the command.
func openTerminal(t *testing.T) (*terminal, *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals here: ", err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &terminal{File: master}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			p.mu.Lock()
			p.out.Write(b[:n])
			p.mu.Unlock()
		}
	}()
	return p, slave
}

func (p *terminal) seen() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// TestRunTerminal: colours by origin, and Ctrl-C stops the answer but not the chat.
func TestRunTerminal(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		env     string
		colours bool
	}{{"colours", "NO_COLOR=", true}, {"no-colours", "NO_COLOR=1", false}} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			p, slave := openTerminal(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := w.command(ctx, "run", "--max-tokens", "40", "--strategy", "fixed", "--ignore-eos")
			cmd.Env = append(cmd.Env, tc.env, "TERM=xterm", "XDG_STATE_HOME="+t.TempDir())
			cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
			cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			slave.Close()
			step := func(what, send, want string) {
				t.Helper()
				from := len(p.seen())
				if _, err := p.WriteString(send); err != nil {
					t.Fatal(err)
				}
				testkit.Eventually(t, what, func() bool { return strings.Contains(p.seen()[from:], want) })
			}
			step("a prompt", "", ">>> ")
			step("an answer", "func (r *Reader) Read(\n", "tokens per round")
			if got := strings.Contains(p.seen(), "\x1b[36m"); got != tc.colours {
				t.Errorf("colours %v: want %v: %q", got, tc.colours, p.seen())
			}
			step("more tokens", "/set max_tokens 900\n", "max_tokens is 900")
			step("a longer answer", "func (w *Writer) Write(\n", "\r\n\t")
			step("Ctrl-C stops it", "\x03", "stopped after ")
			step("the chat goes on", "/set max_tokens 3\n", "max_tokens is 3")
			step("another answer", "func main() {\n", "3 tokens,")
			step("Ctrl-C at the prompt", "\x03", "ends the chat")
			step("pasted text is one message", "\x1b[200~/set max_tokens\x1b[201~ 2\r", "max_tokens is 2")
			step("Up fetches the history", "\x1b[A\x7f4\r", "max_tokens is 4")
			step("nothing is sent", "/stats\n", "chosen:")
			if _, err := p.WriteString("\x04"); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("after Ctrl-D: %v: %q", err, p.seen())
			}
			// all that was sent to the terminal are colours, the editor's ways to draw a line, and that of a start that takes long
			if left := regexp.MustCompile(`\x1b\[((36|2|0)m|\?2004[hl]|J|K|\d+[AC])`).ReplaceAllString(p.seen(), ""); strings.Contains(left, "\x1b") {
				t.Errorf("escapes besides colours: %q", left)
			}
		})
	}
}

// TestRunAddr uses a gateway that runs, which wants a key: without --target text is continued.
func TestRunAddr(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	addr, stop := w.served("--api-key", "sesame")
	defer stop()
	want := w.generate("--prompt", "import os", "--max-tokens", "6", "--no-draft").Text
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("# of the gateway\nsesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, key := range [][]string{{"--api-key", "sesame"}, {"--api-keys", keys}} {
		got := w.feed("import os\n", append([]string{"run", "--addr", addr, "--temperature", "0", "--max-tokens", "6"}, key...)...)
		if got.code != 0 || strings.TrimSuffix(got.stdout, "\n") != strings.TrimSuffix(want, "\n") {
			t.Errorf("exit code %d, printed %q: want %q; %s", got.code, got.stdout, want, got.stderr)
		}
		got = w.run(append([]string{"generate", "--addr", addr, "--prompt", "import os", "--max-tokens", "6", "--no-draft"}, key...)...)
		if got.stdout != want {
			t.Errorf("generate with %s printed %q: want %q; %s", key[0], got.stdout, want, got.stderr)
		}
		if got = w.run(append([]string{"ps", "--addr", addr}, key...)...); got.code != 0 || !strings.Contains(got.stdout, "verifier") {
			t.Errorf("ps with %s: exit code %d, printed %q; %s", key[0], got.code, got.stdout, got.stderr)
		}
		got = w.run(append([]string{"top", "--count", "1", "--every", "100ms", "--addr", addr}, key...)...)
		if got.code != 0 || !strings.Contains(got.stdout, "verdicts/s") {
			t.Errorf("top with %s: exit code %d, printed %q; %s", key[0], got.code, got.stdout, got.stderr)
		}
	}
	if got := w.feed("import os\n", "run", "--addr", addr, "--api-key", "abracadabra"); !strings.Contains(got.stderr, "key") ||
		got.stdout != "" {
		t.Errorf("with a wrong key: printed %q, said %q", got.stdout, got.stderr)
	}
}

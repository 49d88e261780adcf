package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem/test/testkit"
)

// agentRecord is the variable that makes this program an agent: it names the file in which the agent writes what it has seen.
const agentRecord = "TEST_AGENT_RECORD"

// agentSeen is what the agent of a test has seen.
type agentSeen struct {
	Args      []string
	Env       map[string]string
	Files     map[string]string // of its private folder
	Modes     []string          // of the folder and its files
	Stdin     string            // up to its end, or a line of a terminal
	Terminal  bool              // stdin is one
	Status    int               // of its request
	Answer    string
	Signals   []string
	Elsewhere string // what a wrong key gets
}

// actAgent is an agent in place of Claude Code: it asks the server that its variables name, and then ends as its first argument says:
// "exit" at once with status 3, "wait" after a signal with status 5.
func actAgent(record string) int {
	seen := agentSeen{Args: os.Args[1:], Env: map[string]string{}, Files: map[string]string{}}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		seen.Env[name] = value
	}
	_ = filepath.WalkDir(seen.Env["CLAUDE_CONFIG_DIR"], func(path string, d fs.DirEntry, err error) error {
		if st, wrong := os.Stat(path); err == nil && wrong == nil {
			seen.Modes = append(seen.Modes, st.Mode().String())
			text, _ := os.ReadFile(path)
			seen.Files[filepath.Base(path)] = string(text)
		}
		return nil
	})
	_, err := unix.IoctlGetTermios(0, unix.TCGETS)
	seen.Terminal = err == nil
	if line := make([]byte, 100); seen.Terminal {
		n, _ := os.Stdin.Read(line)
		seen.Stdin = string(line[:n])
	} else {
		text, _ := io.ReadAll(os.Stdin)
		seen.Stdin = string(text)
	}
	seen.Status, seen.Answer = agentAsks(seen.Env, seen.Env["ANTHROPIC_AUTH_TOKEN"])
	wrong, _ := agentAsks(seen.Env, "wrong")
	seen.Elsewhere = fmt.Sprint(wrong)
	fmt.Println("the agent speaks")
	code := 3
	if os.Args[1] == "wait" {
		write(record+".waits", seen)
		s := <-signals
		seen.Signals, code = append(seen.Signals, s.String()), 5
	}
	write(record, seen)
	return code
}

// agentAsks sends a message as Claude Code does.
func agentAsks(env map[string]string, key string) (status int, body string) {
	r, err := http.NewRequest(http.MethodPost, env["ANTHROPIC_BASE_URL"]+"/v1/messages?beta=true", strings.NewReader(agentPrompt(env)))
	if err != nil {
		return 0, err.Error()
	}
	r.Header.Set("Authorization", "Bearer "+key)
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer a.Body.Close()
	text, _ := io.ReadAll(a.Body)
	return a.StatusCode, string(text)
}

// agentPrompt is what an agent sends. As many do, it names its own folder before the user's words.
func agentPrompt(env map[string]string) string {
	return `{"model": "` + env["ANTHROPIC_MODEL"] + `", "max_tokens": 200, "temperature": 0, "system": "Settings are in ` +
		env["CLAUDE_CONFIG_DIR"] + `.", "messages": [{"role": "user", "content": "func main() {"}]}`
}

func write(path string, seen agentSeen) {
	text, _ := json.Marshal(seen)
	_ = os.WriteFile(path+".part", text, 0o600)
	_ = os.Rename(path+".part", path)
}

// launched is the surroundings of tandem launch with a scripted agent in place of Claude Code.
type launched struct {
	*world
	home, cache, bin, record, template string
}

// waits waits until the agent waits, and reports whether it does before ctx ends.
func (l *launched) waits(ctx context.Context) bool {
	return testkit.Until(func() bool {
		_, err := os.Stat(l.record + ".waits")
		return err == nil || ctx.Err() != nil
	}) && ctx.Err() == nil
}

func newLaunched(t *testing.T) *launched {
	t.Helper()
	l := &launched{world: newWorld(t), home: t.TempDir(), cache: t.TempDir(), bin: t.TempDir(), record: filepath.Join(t.TempDir(), "seen")}
	l.template = filepath.Join(t.TempDir(), "chat.jinja")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{l.template: template, filepath.Join(l.home, ".claude.json"): `{"mine": true}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(self, filepath.Join(l.bin, "claude")); err != nil {
		t.Fatal(err)
	}
	return l
}

// launch returns tandem launch, in a session of its own without a terminal.
func (l *launched) launch(ctx context.Context, args ...string) *exec.Cmd {
	cmd := l.command(ctx, append([]string{"launch", "claude"}, args...)...)
	cmd.Env = append(cmd.Env, "HOME="+l.home, "TANDEM_CACHE="+l.cache, "PATH="+l.bin, agentRecord+"="+l.record, "ANTHROPIC_API_KEY=mine",
		"HTTP_PROXY=http://192.0.2.1:1", "NO_PROXY=example.org")
	cmd.SysProcAttr.Setsid = true
	return cmd
}

const shippedTarget = "../models/gopher-19m-q8_0.gguf"

// models are flags for the shipped models.
func (l *launched) models() []string {
	return []string{"--target", shippedTarget, "--draft", "../models/gopher-draft-all-f16.gguf", "--chat-template", l.template}
}

// apart are models, and a port that no other test takes between the look whether it is free and its use.
func (l *launched) apart() []string { return append(l.models(), "--http", "127.0.0.1:0") }

// saw returns what the agent has seen.
func (l *launched) saw(path string) (s agentSeen) {
	l.t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

// untouched checks that the user's folder is as it was, and that nothing but what is remembered is left in the cache's.
func (l *launched) untouched() {
	l.t.Helper()
	for dir, want := range map[string][]string{l.home: {".claude.json"}, l.cache: {"launch.json"}} {
		entries, err := os.ReadDir(dir)
		var names []string
		for _, e := range entries {
			if !slices.Contains([]string{"prefixes", "digests.json", "costs"}, e.Name()) { // these may have been written by now, or not
				names = append(names, e.Name())
			}
		}
		if err != nil || !slices.Equal(names, want) {
			l.t.Errorf("%s holds %q, %v: want %q", dir, names, err, want)
		}
	}
	if text, err := os.ReadFile(filepath.Join(l.home, ".claude.json")); string(text) != `{"mine": true}` {
		l.t.Errorf("the user's file holds %s, %v", text, err)
	}
}

// gained is what launch says at its end.
var gained = regexp.MustCompile(`^tandem: \d+ tokens in [\d.]+ s of decoding, [\d.]+ tokens/s, [\d.]+ times plain decoding` +
	`; the same bits as without drafts$`)

// TestLaunch runs an agent with servers of its own: it gets its settings, its input and arguments, an answer with its key and none without,
// and its exit status is that of the command. Later calls need no models.
func TestLaunch(t *testing.T) {
	t.Parallel()
	l := newLaunched(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := l.launch(ctx, append(l.models(), "--", "exit", "-p", "two words")...)
	cmd.Stdin = strings.NewReader("from the user")
	e := l.wait(cmd)
	if e.code != 3 || e.stdout != "the agent speaks\n" {
		t.Fatalf("exit code %d, stdout %q: want the agent's\n%s", e.code, e.stdout, e.stderr)
	}
	s := l.saw(l.record)
	if !slices.Equal(s.Args, []string{"exit", "-p", "two words"}) || s.Stdin != "from the user" || s.Terminal {
		t.Errorf("the agent got %q, stdin %q, terminal %v", s.Args, s.Stdin, s.Terminal)
	}
	if s.Status != http.StatusOK || !strings.Contains(s.Answer, `"type":"message"`) || s.Elsewhere != "401" {
		t.Errorf("status %d, %s; with a wrong key %s", s.Status, s.Answer, s.Elsewhere)
	}
	if _, has := s.Env["ANTHROPIC_API_KEY"]; has || s.Env["ANTHROPIC_MODEL"] == "" ||
		s.Env["NO_PROXY"] != "127.0.0.1,localhost,::1,example.org" {
		t.Errorf("environment %v", s.Env)
	}
	modes := []string{"drwx------", "-rw-------"}
	if !slices.Equal(s.Modes, modes) || !strings.Contains(s.Files[".claude.json"], "Onboarding") {
		t.Errorf("private folder %q, %q: want modes %q", s.Modes, s.Files, modes)
	}
	lines := strings.Split(strings.TrimSpace(e.stderr), "\n")
	if !gained.MatchString(lines[len(lines)-1]) {
		t.Errorf("last line %q", lines[len(lines)-1])
	}
	if !strings.Contains(e.stderr, "claude begins with about 23000 tokens, and a conversation has at most ") {
		t.Errorf("nothing says that the context is too small:\n%s", e.stderr)
	}
	if st, err := os.Stat(filepath.Join(l.cache, "launch.json")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("what is remembered: %v, %v: want a file for this user alone", st, err)
	}
	l.untouched()

	e = l.wait(l.launch(ctx, "--", "exit"))
	again := l.saw(l.record)
	if e.code != 3 || again.Status != http.StatusOK || again.Env["ANTHROPIC_AUTH_TOKEN"] != s.Env["ANTHROPIC_AUTH_TOKEN"] ||
		again.Env["ANTHROPIC_MODEL"] != s.Env["ANTHROPIC_MODEL"] || agentPrompt(again.Env) != agentPrompt(s.Env) {
		t.Errorf("without models: exit code %d, %+v\n%s\nwant the models, the key and the prompt of the last time", e.code, again, e.stderr)
	}
	l.untouched()
}

// TestLaunchTwice: launches at the same moment, for all of which the same port looks free, each have a server of their own.
func TestLaunchTwice(t *testing.T) {
	t.Parallel()
	const launches = 2
	port := freeAddr(t)
	var ls [launches]*launched
	var ended [launches]ended
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for i := range ls {
		l := newLaunched(t)
		ls[i] = l
		cmd := l.launch(ctx, append(l.models(), "--http", port, "--", "wait")...)
		all.Go(func() { ended[i] = l.wait(cmd) })
		all.Go(func() { // none ends before all have begun
			if testkit.Until(func() bool { return ctx.Err() != nil || waits(ls[:]) }) && ctx.Err() == nil {
				_ = cmd.Process.Signal(syscall.SIGINT)
			}
		})
	}
	all.Wait()
	urls := map[string]bool{}
	for i, l := range ls {
		if _, err := os.Stat(l.record); err != nil {
			t.Fatalf("launch %d: the agent did not run: exit code %d\n%s", i, ended[i].code, ended[i].stderr)
		}
		s := l.saw(l.record)
		if ended[i].code != 5 || s.Status != http.StatusOK || s.Elsewhere != "401" {
			t.Errorf("launch %d: exit code %d, status %d, with a wrong key %s\n%s", i, ended[i].code, s.Status, s.Elsewhere,
				ended[i].stderr)
		}
		urls[s.Env["ANTHROPIC_BASE_URL"]] = true
		l.untouched()
	}
	if len(urls) != launches || !urls["http://"+port] {
		t.Errorf("servers %v: want one for each launch, one of them at %s", urls, port)
	}
}

// waits reports whether the agents of all launches wait for a signal.
func waits(all []*launched) bool {
	return !slices.ContainsFunc(all, func(l *launched) bool {
		_, err := os.Stat(l.record + ".waits")
		return err != nil
	})
}

// TestLaunchStopped: signals reach the agent, and nothing is left.
func TestLaunchStopped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		signal syscall.Signal
		saw    string
		code   int
	}{{syscall.SIGINT, "interrupt", 5}, {syscall.SIGTERM, "terminated", 128 + 15}, {syscall.SIGHUP, "terminated", 128 + 1}} {
		t.Run(c.signal.String(), func(t *testing.T) {
			l := newLaunched(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := l.launch(ctx, append(l.apart(), "--", "wait")...)
			go func() {
				if l.waits(ctx) {
					_ = cmd.Process.Signal(c.signal)
				}
			}()
			e := l.wait(cmd)
			if _, err := os.Stat(l.record); err != nil {
				t.Fatalf("the agent did not run: exit code %d\n%s", e.code, e.stderr)
			}
			if s := l.saw(l.record); e.code != c.code || !slices.Equal(s.Signals, []string{c.saw}) {
				t.Errorf("exit code %d, the agent got %q: want %d and %s\n%s", e.code, s.Signals, c.code, c.saw, e.stderr)
			}
			l.untouched()
		})
	}
}

// TestLaunchTerminal: the agent has the user's terminal, and a Ctrl-C there is for the agent alone.
func TestLaunchTerminal(t *testing.T) {
	t.Parallel()
	l := newLaunched(t)
	master, slave := pseudoTerminal(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := l.launch(ctx, append(l.apart(), "--", "wait")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setctty = true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	screen := make(chan string, 1)
	go func() {
		var all bytes.Buffer
		_, _ = io.Copy(&all, master) // ends with the last process that has the terminal
		screen <- all.String()
	}()
	if _, err := master.WriteString("typed\n"); err != nil {
		t.Fatal(err)
	}
	l.waits(ctx)
	if _, err := master.Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	err := cmd.Wait()
	if s := l.saw(l.record); cmd.ProcessState.ExitCode() != 5 || !s.Terminal || s.Stdin != "typed\n" ||
		!slices.Equal(s.Signals, []string{"interrupt"}) {
		t.Errorf("%v, the agent saw %+v: want status 5 after one interrupt", err, s)
	}
	if all := <-screen; !strings.Contains(all, "the same bits") {
		t.Errorf("on the screen: %s\nwant what was gained", all)
	}
	l.untouched()
}

// pseudoTerminal returns both ends of a terminal.
func pseudoTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	return master, slave
}

// TestLaunchRefused: what cannot work is said before anything is started.
func TestLaunchRefused(t *testing.T) {
	t.Parallel()
	l := newLaunched(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--target", shippedTarget}, 1, "claude needs a model that chats, and " + shippedTarget + " does not"},
		{nil, 2, "no model named, and none is remembered: want --target FILE"},
		{[]string{"--draft", "lookup"}, 2, "drafts are named and no target"},
		{[]string{"--url", "http://127.0.0.1:1"}, 1, "nothing listens at http://127.0.0.1:1: start `tandem up`"},
		{[]string{"--url", "127.0.0.1:1"}, 2, "--url 127.0.0.1:1: want http://HOST:PORT"},
		{append(l.models(), "--url", "http://127.0.0.1:1"), 2, "--url with --target or --draft: want one of them"},
		{append(l.models(), "--http", "off"), 2, "--http off: a program needs a host and a port"},
	} {
		e := l.wait(l.launch(t.Context(), c.args...))
		if e.code != c.code || !strings.Contains(e.stderr, c.says) {
			t.Errorf("tandem launch claude %q: exit code %d, %s\nwant %d, %s", c.args, e.code, e.stderr, c.code, c.says)
		}
	}
	if err := os.Remove(filepath.Join(l.bin, "claude")); err != nil {
		t.Fatal(err)
	}
	e := l.wait(l.launch(t.Context(), l.apart()...))
	want := "tandem: claude is not in PATH: npm install -g @anthropic-ai/claude-code installs Claude Code\n"
	if e.code != 1 || e.stderr != want {
		t.Errorf("without the program: exit code %d, %s", e.code, e.stderr)
	}
	if _, err := os.Stat(l.record); err == nil {
		t.Error("the agent was started")
	}
}

// TestLaunchURL: with a server that runs already nothing else is started, and it goes on.
func TestLaunchURL(t *testing.T) {
	t.Parallel()
	g := upWeb(t, template, "--api-key", "0123456789abcdef")
	l := newLaunched(t)
	for range 2 {
		e := l.wait(l.launch(t.Context(), "--url", g.url+"/v1/", "--api-key", "0123456789abcdef", "--", "exit"))
		if s := l.saw(l.record); e.code != 3 || s.Status != http.StatusOK || s.Env["ANTHROPIC_BASE_URL"] != g.url {
			t.Errorf("exit code %d, %+v\n%s", e.code, s, e.stderr)
		}
	}
	e := l.wait(l.launch(t.Context(), "--url", g.url, "--api-key", "0123456789abcdef", "--print", "--", "-p", "it's"))
	if e.code != 0 || !strings.Contains(e.stdout, "export ANTHROPIC_BASE_URL="+g.url+"\n") ||
		!strings.HasSuffix(e.stdout, "claude -p 'it'\\''s'\n") {
		t.Errorf("--print: exit code %d\n%s%s", e.code, e.stdout, e.stderr)
	}
}

package test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem/test/testkit"
)

// TestRunEditor: on a terminal that changes its size, whose user writes several lines, saves and loads a
// conversation, and stops an answer before its first token.
func TestRunEditor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, slave := openTerminal(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	file := filepath.Join(t.TempDir(), "talk.json")
	cmd := w.command(ctx, "run", "--temperature", "0", "--max-tokens", "12")
	cmd.Env = append(cmd.Env, "NO_COLOR=1", "TERM=xterm", "XDG_STATE_HOME="+t.TempDir())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	step := func(what, send, want string) string {
		t.Helper()
		from := len(p.seen())
		if _, err := p.WriteString(send); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, what, func() bool { return strings.Contains(p.seen()[from:], want) })
		return p.seen()[from:]
	}
	size := func(columns uint16) {
		t.Helper()
		if err := unix.IoctlSetWinsize(int(p.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
			t.Fatal(err)
		}
	}
	size(80)
	step("a prompt", "", ">>> ")
	step("a line", strings.Repeat("a", 30), strings.Repeat("a", 30))
	from := len(p.seen())
	size(20) // 16 behind the prompt, and the rest in the next row
	testkit.Eventually(t, "the line in two rows", func() bool {
		return strings.Contains(p.seen()[from:], ">>> "+strings.Repeat("a", 16)+"\r\n"+strings.Repeat("a", 14))
	})
	size(80)
	step("Ctrl-C drops it", "\x03", ">>> ")

	// several lines, and the same answer from the file
	step("two lines", "func main() {\x1b\r\tfmt.", "... ")
	step("an answer", "\r", "12 tokens,")
	step("saved", "/save "+file+"\r", "saved in")
	text := func(seen string) string { // the answer: between the question's last drawing and the statistics
		seen = seen[strings.LastIndex(seen, "\x1b[?2004l"):]
		return seen[:strings.Index(seen, "12 tokens,")]
	}
	first := text(step("a second answer", "x := 1\r", "12 tokens,"))
	step("the talk of the file", "/load "+file+"\r", "goes on")
	if again := text(step("the second answer again", "x := 1\r", "12 tokens,")); again != first || len(first) < 20 {
		t.Errorf("after /load the answer is %q: want %q", again, first)
	}

	// Ctrl-C before the first token
	prompt := "\x1b[200~" + strings.Repeat("a := b ", 120) + "\x1b[201~\r"
	if _, err := p.WriteString(prompt + "\x03"); err != nil {
		t.Fatal(err)
	}
	step("the talk goes on after Ctrl-C", "/set max_tokens 3\r", "max_tokens is 3")
	step("Ctrl-C at an empty prompt", "\x03", "Ctrl-C again")
	if _, err := p.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C twice: %v: %q", err, p.seen())
	}
}

package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"golang.org/x/sys/unix"
)

// demoSize is a shape that is made in a moment: what the demo does does not depend on it.
var demoSize = []string{"--like", "6,640,10,5,1280", "--max-tokens", "48"}

type demoSide struct {
	Text           string  `json:"text"`
	Tokens         []int32 `json:"tokens"`
	PerSecond      float64 `json:"tokens_per_second"`
	TokensPerRound float64 `json:"tokens_per_round"`
	Accepted       int     `json:"accepted"`
}

// TestDemo: a newcomer's first command, with real processes: as JSON, in a pipe, and what it leaves in the cache.
func TestDemo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kept := t.TempDir()
	args := append([]string{"demo", "--cache", kept, "--strategy", "fixed"}, demoSize...)
	e := w.ok(append(args, "--json")...)
	var r struct {
		Target             string
		Drafts             []string
		Plain, Speculative demoSide
		Speedup            float64
		Equal              bool `json:"ids_equal"`
	}
	if err := json.Unmarshal([]byte(e.stdout), &r); err != nil {
		t.Fatalf("%v: %s", err, e.stdout)
	}
	plain, spec := r.Plain, r.Speculative
	if !r.Equal || len(plain.Tokens) != 48 || !slices.Equal(plain.Tokens, spec.Tokens) || plain.Text != spec.Text || plain.Text == "" {
		t.Errorf("not equal, or not 48 tokens: %+v", r)
	}
	if plain.TokensPerRound != 1 || plain.Accepted != 0 || plain.PerSecond <= 0 {
		t.Errorf("figures of %+v", plain)
	}
	if spec.TokensPerRound <= 1.2 || spec.Accepted == 0 || spec.PerSecond <= 0 || r.Speedup <= 0 {
		t.Errorf("figures of %+v", r)
	}
	if r.Target != "gopher-19m-6x640x10x5x1280-q8_0" || !slices.Equal(r.Drafts, []string{"gopher-draft-all-f16"}) {
		t.Errorf("target %q, drafts %q", r.Target, r.Drafts)
	}

	e = w.ok(args...)
	if n := strings.Count(e.stdout, strings.TrimRight(r.Plain.Text, "\n")); n != 2 || strings.Contains(e.stdout, "\x1b") {
		t.Errorf("the text is there %d times, or there are colours in a pipe: %q", n, e.stdout)
	}
	for _, want := range []string{"--- plain decoding\n", "--- with speculation\n", " 1.00 tokens per round\n", " times as fast\n",
		"\nids equal: all 48 tokens, of which "} {
		if !strings.Contains(e.stdout, want) {
			t.Errorf("no %q in %q", want, e.stdout)
		}
	}

	var list struct {
		Bytes   int64
		Entries []struct{ Kind, File string }
		Removed []struct{ File string }
	}
	read := func(args ...string) {
		t.Helper()
		if err := json.Unmarshal([]byte(w.ok(append(args, "--cache", kept, "--json")...).stdout), &list); err != nil {
			t.Fatal(err)
		}
	}
	read("cache")
	if len(list.Entries) != 1 || list.Entries[0].Kind != "models" || list.Entries[0].File != r.Target+".gguf" || list.Bytes < 1<<20 {
		t.Errorf("cache: %+v", list)
	}
	e = w.ok("cache", "list", "--cache", kept)
	if !strings.Contains(e.stdout, r.Target) || !strings.Contains(e.stdout, "of at most 8.0 GiB in "+kept) {
		t.Errorf("cache list: %q", e.stdout)
	}
	if read("cache", "clear"); len(list.Entries) != 0 || len(list.Removed) != 1 || list.Bytes != 0 {
		t.Errorf("cache clear: %+v", list)
	}
}

// TestDemoTerminal: on a terminal the texts stand side by side, coloured by origin unless NO_COLOR says no.
func TestDemoTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kept := t.TempDir()
	for _, colour := range []bool{true, false} {
		cmd := w.command(t.Context(), append([]string{"demo", "--cache", kept, "--strategy", "fixed"}, demoSize...)...)
		cmd.Env = append(slices.DeleteFunc(cmd.Env, func(kv string) bool { return strings.HasPrefix(kv, "NO_COLOR=") }), "TERM=xterm")
		if !colour {
			cmd.Env = append(cmd.Env, "NO_COLOR=1")
		}
		out := onTerminal(t, cmd, 100, 30)
		last := out[strings.LastIndex(out, "\x1b[J")+3:]
		for _, want := range []string{"plain decoding: ", " │ with speculation: ", "ids equal: all 48 tokens"} {
			if !strings.Contains(last, want) {
				t.Errorf("no %q at the end: %q", want, last)
			}
		}
		if strings.Contains(last, "\x1b[36m") != colour || strings.Contains(last, "guessed by a draft model and accepted") != colour {
			t.Errorf("colours wanted: %v: %q", colour, last)
		}
	}
}

// onTerminal runs a command on a terminal of that size and returns what it wrote there.
func onTerminal(t *testing.T, cmd *exec.Cmd, width, height uint16) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	defer master.Close()
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err := errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})); err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	out, _ := io.ReadAll(master) // ends with an error when the last process has closed the terminal
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	return string(out)
}

// TestDemoStopped: Ctrl-C, while the model is made and while it decodes, leaves nothing behind.
func TestDemoStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kept := t.TempDir()
	stopAt := func(shape, sign string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := w.command(ctx, "demo", "--cache", kept, "--like", shape, "--max-tokens", "512")
		out := new(lockedBuffer)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, sign, func() bool { return strings.Contains(out.String(), sign) })
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		if cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("stopped at %q: %v: want exit code 130\n%s", sign, err, out)
		}
	}
	stopAt("1b", "expanded to 1b")
	if left, _ := filepath.Glob(filepath.Join(kept, "models", "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	stopAt(demoSize[1], "--- plain decoding\n")
}

// TestDemoRefused: what does not fit is said, with what would; a cache that cannot be written is no obstacle, and is said.
func TestDemoRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kept := t.TempDir()
	ends := func(e ended, want ...string) {
		t.Helper()
		lines := strings.Split(strings.TrimSpace(e.stderr), "\n")
		if e.code != 1 && e.code != 2 || e.stdout != "" {
			t.Errorf("exit code %d, stdout %q", e.code, e.stdout)
		}
		for _, part := range want {
			if !strings.Contains(lines[len(lines)-1], part) {
				t.Errorf("the last line is %q: want %q in it", lines[len(lines)-1], part)
			}
		}
	}
	ends(w.run("demo", "--cache", kept, "--cache-limit", "1MiB"),
		"takes 1.0 GiB", "may hold 1.0 MiB", "--cache-limit", "--like ", "--target FILE")
	ends(w.run("demo", "--cache", kept, "--like", "1000,16384,256,128,65536", "--cache-limit", "1024TiB"),
		"memory", "allows", "--like ", "--target FILE")
	ends(w.run("demo", "--cache", kept, "--cache-limit", "much"), "is no size: want bytes")
	ends(w.run("demo", "--cache", kept, "--like", "5,512,8,4,1280"), "5 layers: want 6")
	ends(w.run("demo", "--cache", kept, "--like", "1b", "--target", "big.gguf"), "want them without --target")
	ends(w.run("demo", "--cache", kept, "--tree", "none"), "drafts nothing")
	ends(w.run("demo", "--cache", kept, "--target", "none.gguf"), "none.gguf: no such file")

	file := filepath.Join(kept, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e := w.ok(append([]string{"demo", "--cache", filepath.Join(file, "cache")}, demoSize...)...)
	want := "cannot be written: not a directory: the model is made in " + w.tmp + ", for this run alone"
	if !strings.Contains(e.stderr, want) || !strings.Contains(e.stdout, "ids equal") {
		t.Errorf("no %q in %q, or not equal: %q", want, e.stderr, e.stdout)
	}
}

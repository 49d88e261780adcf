package test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"
)

const readmeGolden = "testdata/readme.golden"

// TestReadmeCommand runs the README's main command; its text and the shape of its statistics are what a
// newcomer sees.
func TestReadmeCommand(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^go run ./cmd/tandem generate --prompt '([^']*)'`).FindSubmatch(readme)
	if m == nil {
		t.Fatal("README.md has no main command")
	}
	w := newWorld(t)
	e := w.ok("generate", "--prompt", string(m[1]))
	if *testkit.Rewrite {
		if err := os.WriteFile(readmeGolden, []byte(e.stdout), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(readmeGolden)
	if err != nil {
		t.Fatal(err)
	}
	if e.stdout != string(want) {
		t.Errorf("text %q: want %q", e.stdout, want)
	}
	line := regexp.MustCompile(`^128 tokens, [0-9.]+ tokens/s, [0-9]+ rounds, [0-9.]+ tokens per round, accepted [0-9]+: [0-9]+ % of levels, [0-9]+ % of nodes\n[0-9.]+ × plain on this talk, same text\n$`)
	loading := regexp.MustCompile(`(?m)^(verifier|drafter): loading .*\n`) // where that takes long
	if !line.MatchString(loading.ReplaceAllString(e.stderr, "")) {
		t.Errorf("stderr %q: want one line of statistics", e.stderr)
	}
	// The planner may rightly leave this small target alone; drafted in every round, the text is the same in fewer rounds.
	e = w.ok("generate", "--strategy", "fixed", "--prompt", string(m[1]))
	if e.stdout != string(want) || strings.Contains(e.stderr, " 1.00 tokens per round") {
		t.Errorf("drafted in every round: text %q: want %q; stderr %q: want fewer rounds than tokens", e.stdout, want, e.stderr)
	}
}

// TestReadmeFromAnywhere finds the shipped models from below the checkout, and in the program outside of it: its text is the same there.
func TestReadmeFromAnywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := func(dir string, args ...string) ended {
		cmd := w.command(t.Context(), args...)
		cmd.Dir = dir
		return w.wait(cmd)
	}
	if e := at("../docs", "tokenize", "--text", "x", "--json"); e.code != 0 || !strings.HasPrefix(e.stdout, `{"tokens":[`) {
		t.Errorf("below the checkout: exit code %d, %q, %q", e.code, e.stdout, e.stderr)
	}
	want, err := os.ReadFile(readmeGolden)
	if err != nil {
		t.Fatal(err)
	}
	e := at("/", "generate", "--prompt", "func (r *Reader) Read(")
	if e.code != 0 || e.stdout != string(want) {
		t.Errorf("outside: exit code %d, %q, %q: want %q", e.code, e.stdout, e.stderr, want)
	}
	refused(t, at("/", "generate", "--target", "builtin:gopher", "--prompt", "x"),
		"builtin:gopher: this program carries builtin:gopher-19m-q8_0")
}

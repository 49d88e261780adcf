package test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

const readmeGolden = "../testdata/readme.golden"

// TestReadmeCommand runs the README's main command; its text and the shape of its statistics are what a
// newcomer sees.
func TestReadmeCommand(t *testing.T) {
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
	if *rewrite {
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
	line := regexp.MustCompile(`^128 tokens, [0-9.]+ tokens/s, [0-9]+ rounds, [0-9.]+ tokens per round, accepted [0-9]+: [0-9]+ % of the levels drafted, [0-9]+ % of the nodes\n$`)
	if !line.MatchString(e.stderr) {
		t.Errorf("stderr %q: want one line of statistics", e.stderr)
	}
	if strings.Contains(e.stderr, " 1.00 tokens per round") {
		t.Errorf("stderr %q: speculation had no effect", e.stderr)
	}
}

// TestReadmeFromAnywhere finds the shipped models from below the checkout, and refuses outside of it.
func TestReadmeFromAnywhere(t *testing.T) {
	w := newWorld(t)
	inside := w.command(t.Context(), "tokenize", "--text", "x", "--json")
	inside.Dir = "../docs"
	if e := w.wait(inside); e.code != 0 || !strings.HasPrefix(e.stdout, `{"tokens":[`) {
		t.Errorf("below the checkout: exit code %d, %q, %q", e.code, e.stdout, e.stderr)
	}
	outside := w.command(t.Context(), "tokenize", "--text", "x")
	outside.Dir = "/"
	refused(t, w.wait(outside), "no model named")
}

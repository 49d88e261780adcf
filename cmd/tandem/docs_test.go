package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/cmd/tandem/config"
)

// documented is a command line of tandem in a document, up to a comment.
var documented = regexp.MustCompile(`(?m)^(?:(?:    )?(?:go run \./cmd/tandem|\./tandem)|    tandem) ([^#\n]*)`)

// TestDocumentedCommands: every command line in the documents is one that tandem understands; those of the guides are
// also run, by package test.
func TestDocumentedCommands(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/guides/*.md", "../../models/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range documented.FindAllStringSubmatch(strings.ReplaceAll(string(text), "\\\n", ""), -1) {
			args := words(strings.NewReplacer("[", "", "]", "").Replace(m[1]))
			n++
			parser, err := newParser(config.NewResolver(func(string) (string, bool) { return "", false }))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parser.Parse(args); err != nil {
				t.Errorf("%s: tandem %s: %v", file, m[1], err)
			}
		}
	}
	if n < 30 {
		t.Errorf("%d command lines found: want all of them", n)
	}
}

// words splits a command line as a shell does, as far as documents need it.
func words(line string) (out []string) {
	var word strings.Builder
	quoted, open := false, false
	for _, r := range line + " " {
		switch {
		case r == '\'':
			quoted, open = !quoted, true
		case quoted || r != ' ':
			word.WriteRune(r)
			open = true
		case open:
			out = append(out, word.String())
			word.Reset()
			open = false
		}
	}
	return out
}

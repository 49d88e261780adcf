package testkit

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Documented returns the command lines in the documents of the checkout at root, without comments and optional marks: what the only group
// of command matches.
func Documented(t testing.TB, root string, command *regexp.Regexp) (all [][]string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "models/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range command.FindAllStringSubmatch(strings.ReplaceAll(string(text), "\\\n", ""), -1) {
				all = append(all, words(strings.NewReplacer("[", "", "]", "").Replace(m[1])))
			}
		}
	}
	return all
}

// words splits a command line as a shell does, as far as documents need it.
func words(line string) (out []string) {
	var word strings.Builder
	quoted, open := false, false
	for _, r := range line + " " {
		switch {
		case r == '\'':
			quoted, open = !quoted, true
		case r == '>' && !quoted && !open: // the shell's: where the output goes
			return out
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

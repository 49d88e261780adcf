package tandem_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const maxArchitecture = 200 // lines of docs/ARCHITECTURE.md

// TestDocs: what documents name in backquotes is there: files and folders, exported names as package.Name, and tests. Those for who changes
// tandem also fit 140 columns; guides and measurements may have wide tables.
func TestDocs(t *testing.T) {
	words, tests := goWords(t)
	quoted := regexp.MustCompile("`([^`\n]+)`")
	aPath := regexp.MustCompile(`^[a-z][\w.-]*/[\w./-]*[\w/]$`)
	aName := regexp.MustCompile(`^([a-z]\w*)\.([A-Z]\w*)(\.[A-Za-z]\w*)?$`)
	aTest := regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]\w*$`)
	narrow := []string{"README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/decisions.md"}
	docs, err := filepath.Glob("docs/*.md")
	guides, _ := filepath.Glob("docs/guides/*.md") // the pattern is right
	if docs = slices.Concat(docs, guides, narrow[:2]); err != nil || len(docs) < 20 {
		t.Fatalf("%d documents, %v: is the test looking at the right folder?", len(docs), err)
	}
	for _, doc := range docs {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
		if doc == "docs/ARCHITECTURE.md" && len(lines) > maxArchitecture {
			t.Errorf("%s has %d lines: want at most %d", doc, len(lines), maxArchitecture)
		}
		for i, line := range lines {
			if n := utf8.RuneCountInString(line); n > maxColumns && slices.Contains(narrow, filepath.ToSlash(doc)) {
				t.Errorf("%s:%d has %d columns: want at most %d", doc, i+1, n, maxColumns)
			}
			for _, q := range quoted.FindAllStringSubmatch(line, -1) {
				m, ok := aName.FindStringSubmatch(q[1]), true
				switch top, _, _ := strings.Cut(q[1], "/"); {
				case aPath.MatchString(q[1]) && !strings.Contains(q[1], "NAME"):
					if _, err := os.Stat(top); err == nil && top != "models" { // else it is of another repository
						_, err = os.Stat(filepath.FromSlash(q[1]))
						ok = err == nil
					}
				case aTest.MatchString(q[1]):
					ok = tests[q[1]]
				case m != nil && words[m[1]] != nil:
					ok = words[m[1]][m[2]] && (m[3] == "" || words[m[1]][m[3][1:]])
				}
				if !ok {
					t.Errorf("%s:%d names %s, which is not there", doc, i+1, q[1])
				}
			}
		}
	}
}

// goWords returns the words that stand in the Go files of each package, by its name, and the names of all tests.
func goWords(t *testing.T) (words map[string]map[string]bool, tests map[string]bool) {
	words, tests = map[string]map[string]bool{}, map[string]bool{}
	pack, word := regexp.MustCompile(`(?m)^package (\w+)`), regexp.MustCompile(`\w+`)
	test := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		m := pack.FindSubmatch(b)
		if m == nil {
			return nil
		}
		name := string(m[1])
		if words[name] == nil {
			words[name] = map[string]bool{}
		}
		for _, w := range word.FindAll(b, -1) {
			words[name][string(w)] = true
		}
		for _, m := range test.FindAllSubmatch(b, -1) {
			tests[string(m[1])] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return words, tests
}

package tandem_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const maxArchitecture = 200 // lines of docs/ARCHITECTURE.md

// TestDocs: the documents for those who change tandem fit 140 columns, and the files and folders that they name are there. Guides and
// measurements may have wide tables.
func TestDocs(t *testing.T) {
	named := regexp.MustCompile("`([a-z][\\w.-]*/[\\w./-]*[\\w/])`")
	for _, doc := range []string{"README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/decisions.md"} {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
		if doc == "docs/ARCHITECTURE.md" && len(lines) > maxArchitecture {
			t.Errorf("%s has %d lines: want at most %d", doc, len(lines), maxArchitecture)
		}
		for i, line := range lines {
			if n := utf8.RuneCountInString(line); n > maxColumns {
				t.Errorf("%s:%d has %d columns: want at most %d", doc, i+1, n, maxColumns)
			}
			for _, m := range named.FindAllStringSubmatch(line, -1) {
				top, _, _ := strings.Cut(m[1], "/")
				if _, err := os.Stat(top); err != nil || strings.Contains(m[1], "NAME") {
					continue // no path of the repository, or a pattern
				}
				if _, err := os.Stat(filepath.FromSlash(m[1])); err != nil {
					t.Errorf("%s:%d names %s, which is not there", doc, i+1, m[1])
				}
			}
		}
	}
}

package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityPage: each promise of docs/security.md names a test, and there is such a test.
func TestSecurityPage(t *testing.T) {
	page, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	known := testNames(t)
	promises, named := 0, regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`")
	inTable := false
	for i, line := range strings.Split(string(page), "\n") {
		switch {
		case strings.HasPrefix(line, "| promise |"), strings.HasPrefix(line, "| who |"):
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case inTable && !strings.HasPrefix(line, "|---"):
			promises++
			if !named.MatchString(line) {
				t.Errorf("line %d: a promise without a test: %s", i+1, line)
			}
		}
		for _, m := range named.FindAllStringSubmatch(line, -1) {
			if !known[m[1]] && m[1] != t.Name() {
				t.Errorf("line %d: there is no test %s", i+1, m[1])
			}
		}
	}
	if promises < 85 {
		t.Errorf("%d promises found: does the test read the tables?", promises)
	}
}

// testNames returns the names of all tests and fuzz targets of the repository.
func testNames(t *testing.T) map[string]bool {
	names, declared := map[string]bool{}, regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9_]+)\(`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != ".." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		src, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(src, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

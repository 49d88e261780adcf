package tandem_test

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxColumns = 140 // a tab counts as 4; only raw strings may be longer
	maxLines   = 500 // of a Go file
	maxFunc    = 60  // lines of a function outside of tests: a screen
)

// longFuncs are the functions longer than maxFunc that there were when the limit became a test, by package and name. The lengths may only
// shrink; a function that fits loses its line here.
var longFuncs = map[string]int{
	"convert.gemma4":      79,
	"cpu.fillOp":          79,
	"cuda.lower":          73,
	"device.run":          76,
	"inspect.describe":    74,
	"family.gemma4":       78,
	"guesses.decode":      70,
	"kerneltest.oneCache": 88,
	"kerneltest.random":   61,
	"measure.decode":      74,
	"pair.Check":          71,
	"rolestest.Refit":     62,
}

// TestLines: code fits 140 columns, files fit 500 lines, and functions a screen. Generated code is left out.
func TestLines(t *testing.T) {
	files, long := 0, map[string]int{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || strings.HasSuffix(path, ".pb.go") || !slices.Contains([]string{".go", ".c", ".h"}, filepath.Ext(path)):
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		lines := strings.Split(string(src), "\n")
		columns(t, path, src, lines)
		if filepath.Ext(path) != ".go" {
			return nil
		}
		if n := len(lines) - 1; n > maxLines {
			t.Errorf("%s has %d lines: want at most %d", path, n, maxLines)
		}
		if strings.HasSuffix(path, "_test.go") {
			return nil
		}
		return measure(long, path, src)
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("%d files were read: is the test looking at the right folder?", files)
	}
	for _, name := range slices.Sorted(maps.Keys(long)) {
		if n, most := long[name], max(longFuncs[name], maxFunc); n > most {
			t.Errorf("%s has %d lines: want at most %d", name, n, most)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(longFuncs)) {
		if long[name] == 0 {
			t.Errorf("longFuncs: no %s has more than %d lines now: remove it", name, maxFunc)
		}
	}
}

// columns checks the width of a file's lines.
func columns(t *testing.T, path string, src []byte, lines []string) {
	var raw map[int]bool
	for i, line := range lines {
		got := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
		if got <= maxColumns {
			continue
		}
		if raw == nil {
			raw = rawLines(path, src)
		}
		if !raw[i+1] {
			t.Errorf("%s:%d has %d columns: want at most %d", path, i+1, got, maxColumns)
		}
	}
}

// measure adds the functions of a Go file that are longer than maxFunc; of equal names in equal packages the longest counts.
func measure(long map[string]int, path string, src []byte) error {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if n := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1; n > maxFunc {
			name := file.Name.Name + "." + f.Name.Name
			long[name] = max(long[name], n)
		}
	}
	return nil
}

// rawLines returns the numbers of the lines of a Go file that hold a raw string or a part of one; none for a file of C.
func rawLines(path string, src []byte) map[int]bool {
	raw := map[int]bool{}
	if filepath.Ext(path) != ".go" {
		return raw
	}
	file := token.NewFileSet().AddFile(path, -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0)
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			return raw
		}
		if kind == token.STRING && text[0] == '`' {
			first := file.Line(pos)
			for n := range strings.Count(text, "\n") + 1 {
				raw[first+n] = true
			}
		}
	}
}

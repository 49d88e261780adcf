package tandem_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestLines: code fits 140 columns, a tab counting as 4. Only raw strings and generated code may be longer.
func TestLines(t *testing.T) {
	const limit = 140
	files := 0
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
		var raw map[int]bool
		for i, line := range strings.Split(string(src), "\n") {
			got := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
			if got <= limit {
				continue
			}
			if raw == nil {
				raw = rawLines(path, src)
			}
			if !raw[i+1] {
				t.Errorf("%s:%d has %d columns: want at most %d", path, i+1, got, limit)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("%d files were read: is the test looking at the right folder?", files)
	}
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

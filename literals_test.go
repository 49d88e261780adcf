package tandem_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// numbers is the table of tuned numbers, and mostNumbers is how many it may have.
const (
	numbers     = "spec/worth/numbers.go"
	mostNumbers = 25
)

// chosenIn are the rooms and files that decide which tokens are drafted, by whom and when.
var chosenIn = []string{"spec/*.go", "spec/learn/*.go", "spec/shape/*.go", "spec/worth/*.go", "gateway/strategy/*.go", "gateway/round/*.go",
	"gateway/fleet/*.go", "drafter/*.go", "verifier/guesses/*.go"}

// TestLiterals: in those rooms a number is 0, 1 or 2, or stands in the table with its unit, its source and what the replays lose without
// it. These are no tuned numbers:
//
//   - a size, which bounds memory, work or a format: a power of two, written as a shift (1 << 6), as are the places of bits;
//   - a hash's multiplier: hexadecimal;
//   - a wait for what may be lost: a number times a unit of time;
//   - a rounding error: 1e-n with n of at least 6;
//   - a setting's default: a constant named Default…, which the settings' help shows.
func TestLiterals(t *testing.T) {
	for _, pattern := range chosenIn {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || file == numbers {
				continue
			}
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BinaryExpr:
					return n.Op != token.SHL && n.Op != token.SHR && !(n.Op == token.MUL && (isTime(n.X) || isTime(n.Y)))
				case *ast.AssignStmt:
					return n.Tok != token.SHL_ASSIGN && n.Tok != token.SHR_ASSIGN
				case *ast.ValueSpec:
					return !strings.HasPrefix(n.Names[0].Name, "Default")
				case *ast.BasicLit:
					if n.Kind != token.STRING && n.Kind != token.CHAR && !plain(n.Value) {
						t.Errorf("%s: %s is neither 0, 1 nor 2: derive it, or put it into %s", set.Position(n.Pos()), n.Value, numbers)
					}
				}
				return true
			})
		}
	}
}

// isTime reports whether an expression is a unit of time.
func isTime(x ast.Expr) bool {
	s, is := x.(*ast.SelectorExpr)
	if !is {
		return false
	}
	pkg, is := s.X.(*ast.Ident)
	return is && pkg.Name == "time"
}

func plain(literal string) bool {
	if strings.HasPrefix(literal, "0x") {
		return true
	}
	if power, is := strings.CutPrefix(literal, "1e-"); is {
		return len(power) > 1 || power >= "6"
	}
	value, err := strconv.ParseFloat(literal, 64)
	return err == nil && (value == 0 || value == 1 || value == 2)
}

// TestNumbers: every row of the table says its unit, its source and its ablation, and there are few. Numbers of papers are apart.
func TestNumbers(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), numbers, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	tuned := 0
	for _, d := range f.Decls {
		g, is := d.(*ast.GenDecl)
		if !is || g.Tok == token.IMPORT {
			continue
		}
		paper := strings.Contains(g.Doc.Text(), "paper")
		for name, doc := range rows(g) {
			if !strings.HasPrefix(doc, name+", ") || !strings.Contains(doc, "Source:") {
				t.Errorf("%s: %q: want a comment \"%s, UNIT: … Source: …\"", name, doc, name)
			}
			if paper {
				continue
			}
			if tuned++; !strings.Contains(doc, "Ablation:") {
				t.Errorf("%s: no ablation in %q", name, doc)
			}
		}
	}
	if t.Logf("%d tuned numbers", tuned); tuned > mostNumbers {
		t.Errorf("%d tuned numbers: want at most %d", tuned, mostNumbers)
	}
}

// rows returns the numbers that a declaration has: its constants, or the fields of its struct, with their comments.
func rows(g *ast.GenDecl) map[string]string {
	out := map[string]string{}
	for _, s := range g.Specs {
		switch s := s.(type) {
		case *ast.ValueSpec:
			if g.Tok == token.CONST {
				out[s.Names[0].Name] = s.Doc.Text()
			}
		case *ast.TypeSpec:
			for _, f := range s.Type.(*ast.StructType).Fields.List {
				out[f.Names[0].Name] = f.Doc.Text()
			}
		}
	}
	return out
}

package kernels

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestDevicesKnowOperations: each device that computes by itself has a case for every type that is an Op.
func TestDevicesKnowOperations(t *testing.T) {
	var all []string
	files(t, ".", func(n ast.Node) {
		if f, ok := n.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "uses" {
			all = append(all, f.Recv.List[0].Type.(*ast.Ident).Name)
		}
	})
	if len(all) < 29 {
		t.Fatalf("%d operations found, want at least 29: is the test looking for the right method?", len(all))
	}
	for _, device := range []string{"ref/device", "cpu", "cuda"} {
		cases := map[string]bool{"Meet": true} // two halves of a pass meet; only devices that can be coupled have it
		files(t, device, func(n ast.Node) {
			c, ok := n.(*ast.CaseClause)
			if !ok {
				return
			}
			for _, x := range c.List {
				if s, ok := x.(*ast.SelectorExpr); ok && name(s.X) == "kernels" {
					cases[s.Sel.Name] = true
				}
			}
		})
		for _, op := range all {
			if !cases[op] {
				t.Errorf("kernels/%s has no case for operation %s", device, op)
			}
		}
	}
}

func name(x ast.Expr) string {
	if id, ok := x.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// files calls f for every node of a folder's Go files that are no tests.
func files(t *testing.T, dir string, f func(ast.Node)) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if n != nil {
				f(n)
			}
			return true
		})
	}
}

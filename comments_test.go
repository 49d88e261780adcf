package tandem_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// wellKnown are methods of the standard library's interfaces, whose comments stand there.
var wellKnown = []string{"String", "Error", "Unwrap", "Is", "Len", "Less", "Swap", "Read", "Write", "Close", "MarshalJSON", "UnmarshalJSON",
	"MarshalText", "UnmarshalText", "MarshalYAML", "UnmarshalYAML", "ServeHTTP"}

// TestComments: each exported name of the product, and each method of its interfaces, has a comment that says what its user must know:
// shapes, units, errors, who owns what until when, where a formula comes from. A method may leave that to an interface that has a method
// of its name, as those of hidden types do, and a constant to the comment of its group.
func TestComments(t *testing.T) {
	src, set, all := map[string][]byte{}, token.NewFileSet(), map[string]*ast.File{}
	for _, name := range tracked(t) {
		b, err := os.ReadFile(name)
		if err == nil && path.Ext(name) == ".go" && !generated(name, b) && !strings.HasSuffix(name, "_test.go") {
			src[name] = b
		}
	}
	product := imported(t, src, "cmd/tandem", "client")
	contracts := slices.Clone(wellKnown)
	for name, b := range src {
		if !product[path.Dir(name)] {
			continue
		}
		f, err := parser.ParseFile(set, name, b, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = f
		ast.Inspect(f, func(n ast.Node) bool {
			if i, ok := n.(*ast.InterfaceType); ok {
				for _, m := range i.Methods.List {
					for _, id := range m.Names {
						contracts = append(contracts, id.Name)
					}
				}
			}
			return true
		})
	}
	if len(all) < 300 {
		t.Errorf("%d files were read: is the test looking at the right folder?", len(all))
	}
	for _, f := range all {
		for _, id := range uncommented(f, contracts) {
			t.Errorf("%s: %s has no comment: say what its user must know", set.Position(id.Pos()), id.Name)
		}
	}
}

// uncommented returns the exported names that a file declares without a comment.
func uncommented(f *ast.File, contracts []string) (names []*ast.Ident) {
	if f.Name.Name == "main" {
		return nil
	}
	need := func(ids []*ast.Ident, comments ...*ast.CommentGroup) {
		if !slices.ContainsFunc(comments, func(c *ast.CommentGroup) bool { return c != nil }) {
			names = append(names, slices.DeleteFunc(slices.Clone(ids), func(id *ast.Ident) bool { return !id.IsExported() })...)
		}
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || !hidden(d.Recv) && !slices.Contains(contracts, d.Name.Name) {
				need([]*ast.Ident{d.Name}, d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					need([]*ast.Ident{s.Name}, d.Doc, s.Doc, s.Comment)
					if i, ok := s.Type.(*ast.InterfaceType); ok && s.Name.IsExported() {
						for _, m := range i.Methods.List {
							need(m.Names, m.Doc, m.Comment)
						}
					}
				case *ast.ValueSpec:
					need(s.Names, d.Doc, s.Doc, s.Comment)
				}
			}
		}
	}
	return names
}

// hidden reports whether a method's receiver is of a type that other packages cannot name.
func hidden(recv *ast.FieldList) bool {
	t := recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return !x.IsExported()
		default:
			return false
		}
	}
}

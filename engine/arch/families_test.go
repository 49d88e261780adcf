package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit/family"
)

const list = "families.go"

// TestFamilies: every family on the list is whole, and has a golden file that test/testkit/family writes or one of package naive's tiny
// models.
func TestFamilies(t *testing.T) {
	golden := map[string]bool{"llama": true} // the shipped models
	for _, name := range family.Goldens() {
		golden[family.Golden(name).Arch] = true
	}
	for name, f := range Families {
		if f.Read == nil || f.Layer == nil {
			t.Errorf("%s has no function to read keys, or to find the tensors of a layer", name)
		}
		if !golden[name] && !inTinyModels(t, name) {
			t.Errorf("%s: no golden file and no tiny model is of this architecture", name)
		}
	}
}

// inTinyModels reports whether package naive computes a tiny model of the architecture by the formulas.
func inTinyModels(t *testing.T, name string) bool {
	src, err := os.ReadFile("../naive/cases.go")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(src), `Tiny("`+name+`"`)
}

// TestWalls: architectures are named in the list alone, and no family's file uses what another one's file declares.
func TestWalls(t *testing.T) {
	declared := map[string]string{} // by name: the file
	files := map[string]*ast.File{}
	set := token.NewFileSet()
	for _, dir := range []string{".", "..", "../blocks", "../tensors"} {
		paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(paths) == 0 {
			t.Fatal(dir, err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files[path] = f
			if path != list {
				noNames(t, set, f)
			}
		}
	}
	for path, f := range files {
		if filepath.Dir(path) == "." {
			for _, name := range namesIn(f) {
				declared[name] = path
			}
		}
	}
	for path, f := range files {
		if filepath.Dir(path) != "." || path == list {
			continue
		}
		used := map[string]bool{}
		elsewhere := map[*ast.Ident]bool{} // names of other packages, and of fields
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				elsewhere[n.Sel] = true
			case *ast.KeyValueExpr:
				if id, ok := n.Key.(*ast.Ident); ok {
					elsewhere[id] = true
				}
			case *ast.Ident:
				used[n.Name] = used[n.Name] || !elsewhere[n]
			}
			return true
		})
		for name, here := range used {
			if from := declared[name]; here && from != "" && from != path {
				t.Errorf("%s uses %s of %s: what families share is in package blocks", path, name, from)
			}
		}
	}
}

// noNames fails for each string in f that is the name of an architecture.
func noNames(t *testing.T, set *token.FileSet, f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if s, _ := strconv.Unquote(l.Value); Families[s].Read != nil {
				t.Errorf("%v names the architecture %q: only %s does", set.Position(l.Pos()), s, list)
			}
		}
		return true
	})
}

// namesIn returns what f declares at its top.
func namesIn(f *ast.File) (names []string) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok {
					for _, id := range v.Names {
						names = append(names, id.Name)
					}
				}
			}
		}
	}
	return names
}

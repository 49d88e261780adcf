package tandem_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sizeFile is the table of TestSize. A row has a kind, a part and its limit. `go test . -run TestSize -rewrite-sizes` writes it anew.
const sizeFile = "test/sizes.txt"

const (
	sizeStep  = 50  // a limit is the size rounded up to this
	sizeSlack = 150 // a part that is this much smaller than its limit asks for a lower one
)

var rewriteSizes = flag.Bool("rewrite-sizes", false, "write "+sizeFile+" anew")

// divided are the folders whose subfolders are parts of their own in the product. Any other top folder is one part.
var divided = []string{"app", "cmd", "engine", "gateway", "kernels", "modelfile", "processes", "processes/roles", "services",
	"services/peers", "services/public", "services/public/httpapi", "spec", "text"}

// TestSize is a ratchet: no part of the repository has more lines than its row in sizeFile says, and a part that has shrunk lowers its row.
//
// Kinds: "product" is the Go that the command tandem and the package client consist of; "tests" are _test.go files, packages that nothing
// else imports, and what lies below test; "lab" is the folder lab and what only its program imports; "c", "cuda", "page" (HTML, CSS,
// JavaScript of the product), "python" and "scripts" are lines of other languages; "words" are those of Markdown. Generated code counts
// nowhere.
func TestSize(t *testing.T) {
	got := sizes(t, tracked(t))
	if *rewriteSizes {
		if err := os.WriteFile(sizeFile, []byte(sizeTable(got)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := readSizes(sizeFile)
	if err != nil {
		t.Fatal(err)
	}
	const how = "go test . -run TestSize -rewrite-sizes"
	for _, row := range slices.Sorted(maps.Keys(got)) {
		n, limit, unit := got[row], want[row], "lines"
		if strings.HasPrefix(row, "words ") {
			unit = "words"
		}
		switch {
		case limit == 0:
			t.Errorf("%s has %d %s and no row in %s: add it with\n\t%s\nand say in the commit's body what goes for it",
				row, n, unit, sizeFile, how)
		case n > limit:
			t.Errorf("%s has %d %s, and its limit is %d: delete %d, or raise the limit in this commit with\n\t%s\n"+
				"and say in the commit's body what goes for it", row, n, unit, limit, n-limit, how)
		case n < limit-sizeSlack:
			t.Errorf("%s has %d %s now, and its limit is %d: lower it with\n\t%s", row, n, unit, limit, how)
		}
	}
	for row := range want {
		if got[row] == 0 {
			t.Errorf("%s has a row for %s, which is gone: remove it with\n\t%s", sizeFile, row, how)
		}
	}
	if got["product all"] < 50_000 {
		t.Errorf("the product has %d lines of Go: is the test looking at the right files?", got["product all"])
	}
}

// sizes counts files by kind and part, and the Go of all parts of the product as "product all".
func sizes(t *testing.T, files []string) map[string]int {
	src := map[string][]byte{}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil || generated(name, b) {
			continue // deleted, not yet committed; or nobody wrote it
		}
		src[name] = b
	}
	product, lab := imported(t, src, "cmd/tandem", "client"), imported(t, src, "lab/cmd/tandem-lab")
	n := map[string]int{}
	for name, b := range src {
		row := sizeRow(name, product, lab)
		switch {
		case row == "":
		case strings.HasPrefix(row, "words "):
			n[row] += len(bytes.Fields(b))
		default:
			n[row] += bytes.Count(b, []byte("\n"))
		}
		if strings.HasPrefix(row, "product ") {
			n["product all"] += bytes.Count(b, []byte("\n"))
		}
	}
	return n
}

func generated(name string, src []byte) bool {
	head, _, _ := bytes.Cut(src, []byte("\n"))
	return strings.HasSuffix(name, ".pb.go") || bytes.HasPrefix(head, []byte("// Code generated"))
}

// sizeRow returns the kind and the part of a file, or "" if it is not counted. product and lab are folders of packages.
func sizeRow(name string, product, lab map[string]bool) string {
	dir := path.Dir(name)
	top, _, _ := strings.Cut(name, "/")
	switch ext := path.Ext(name); {
	case ext == ".go" && (top == "lab" || lab[dir] && !product[dir]):
		if strings.HasSuffix(name, "_test.go") {
			return "lab tests"
		}
		return "lab go"
	case ext == ".go" && product[dir] && !strings.HasSuffix(name, "_test.go"):
		return "product " + part(dir)
	case ext == ".go" && dir == ".":
		return "tests root"
	case ext == ".go":
		return "tests " + top
	case name == "docs/decisions.md":
		return "words " + name
	case ext == ".md" && (top == "docs" || dir == "."):
		return "words docs, README, CONTRIBUTING"
	case strings.Contains(name, "testdata/"):
		return ""
	case ext == ".md":
		return "words beside the code"
	case ext == ".c" || ext == ".h" || ext == ".cpp":
		return "c " + dir
	case ext == ".cu" || ext == ".cuh":
		return "cuda " + dir
	case ext == ".html" || ext == ".css" || ext == ".js" && product[path.Dir(dir)]:
		return "page " + dir
	case ext == ".py":
		return "python " + top
	case path.Base(dir) == "scripts" || name == ".ci/run" || name == "Makefile":
		return "scripts Makefile, .ci, scripts"
	}
	return ""
}

// part returns the part of the product that a package belongs to.
func part(dir string) string {
	if dir == "." {
		return "root"
	}
	names := strings.Split(dir, "/")
	for i := range names {
		if part := strings.Join(names[:i+1], "/"); !slices.Contains(divided, part) {
			return part
		}
	}
	return dir
}

// imported returns the folders of the packages that roots consist of, whatever their build tags, without their tests.
func imported(t *testing.T, src map[string][]byte, roots ...string) map[string]bool {
	imports := map[string][]string{}
	for name, b := range src {
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, b, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.Imports {
			to, _ := strconv.Unquote(spec.Path.Value) // parsed, so it is quoted
			if to == module {
				to += "/."
			}
			if to, ours := strings.CutPrefix(to, module+"/"); ours {
				imports[path.Dir(name)] = append(imports[path.Dir(name)], to)
			}
		}
	}
	all := map[string]bool{}
	for len(roots) > 0 {
		dir := roots[0]
		roots = roots[1:]
		if !all[dir] {
			all[dir] = true
			roots = append(roots, imports[dir]...)
		}
	}
	return all
}

// sizeTable writes the rows that readSizes reads.
func sizeTable(n map[string]int) string {
	var b strings.Builder
	b.WriteString("# Limits of TestSize (size_test.go): a kind, a part, and how many lines (of docs: words) it may have.\n" +
		"# go test . -run TestSize -rewrite-sizes writes this file.\n")
	kind := ""
	for _, row := range slices.Sorted(maps.Keys(n)) {
		k, part, _ := strings.Cut(row, " ")
		if k != kind {
			b.WriteString("\n")
			kind = k
		}
		fmt.Fprintf(&b, "%-9s%-42s%7d\n", k, part, (n[row]+sizeStep-1)/sizeStep*sizeStep)
	}
	return b.String()
}

// readSizes reads limits by "kind part".
func readSizes(name string) (map[string]int, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	limits := map[string]int{}
	for i, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		n, err := strconv.Atoi(f[len(f)-1])
		if err != nil || len(f) < 3 {
			return nil, fmt.Errorf("%s:%d: %q: want a kind, a part and a number", name, i+1, line)
		}
		limits[strings.Join(f[:len(f)-1], " ")] = n
	}
	return limits, nil
}

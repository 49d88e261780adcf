package tandem_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// awake are the rooms whose tests never sleep: they wait for an event with a deadline, or run in a bubble of testing/synctest, where
// testkit.Sleep takes no time.
var awake = []string{"drafter", "gateway", "schedule", "services/peers/discovery", "services/public/httpapi", "verifier"}

// sleepers is how many calls of time.Sleep the tests of other folders may have: of those that act slowly, that send faults at random
// times, or that show that nothing happens. The numbers may only fall.
var sleepers = map[string]int{
	"app/bench/pair":            1,
	"kernels/cpu":               2,
	"processes/cache":           2,
	"processes/roles":           1,
	"processes/roles/rolestest": 2,
	"services/peers/pool":       2,
	"services/peers/rpc":        2,
	"services/peers/shm":        2,
	"services/peers/supervise":  5,
	"services/peers/telemetry":  1,
	"services/peers/verifying":  1,
	"services/public":           3,
	"test":                      39,
	"test/clients":              1,
	"test/clients/browser":      1,
}

// TestSleeps: tests wait for what is to happen. Benchmarks may imitate what takes long.
func TestSleeps(t *testing.T) {
	found := map[string]int{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "bench_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if x, ok := n.(*ast.SelectorExpr); ok && x.Sel.Name == "Sleep" {
				if of, ok := x.X.(*ast.Ident); ok && of.Name == "time" {
					found[filepath.ToSlash(filepath.Dir(path))]++
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, n := range found {
		in := func(room string) bool { return dir == room || strings.HasPrefix(dir, room+"/") }
		if most := sleepers[dir]; slices.ContainsFunc(awake, in) || n > most {
			t.Errorf("the tests of %s call time.Sleep %d times: want at most %d; see test/testkit for what to do instead", dir, n, most)
		}
	}
	for dir, most := range sleepers {
		if n := found[dir]; n < most {
			t.Errorf("sleepers: the tests of %s call time.Sleep %d times now: lower the %d", dir, n, most)
		}
	}
}

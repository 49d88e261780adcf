package test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestSkippedList: test/scripts/skipped writes what `go test` would, and then which tests were skipped and why, and what failed ones said.
func TestSkippedList(t *testing.T) {
	const printed = `=== RUN   TestA
    a_test.go:3: no engine: test/scripts/engine brings it
--- SKIP: TestA (0.00s)
=== RUN   TestB
=== PAUSE TestB
=== RUN   TestB/part
    b_test.go:5: a word
    b_test.go:9: no engine: test/scripts/engine brings it
=== CONT  TestB
--- PASS: TestB (0.01s)
    --- SKIP: TestB/part (0.00s)
PASS
ok  	example.com/p	0.1s
?   	example.com/none	[no test files]
=== RUN   TestC
=== RUN   TestD
=== NAME  TestC
    c_test.go:1: beside it
=== NAME  TestD
    d_test.go:1: broken
        twice
--- PASS: TestC (0.00s)
--- FAIL: TestD (0.00s)
FAIL
FAIL	example.com/q	0.2s
# example.com/r
r.go:1:1: does not compile
FAIL	example.com/r [build failed]
FAIL
`
	const want = `ok  	example.com/p	0.1s
    c_test.go:1: beside it
    d_test.go:1: broken
        twice
--- FAIL: TestD (0.00s)
FAIL
FAIL	example.com/q	0.2s
# example.com/r
r.go:1:1: does not compile
FAIL	example.com/r [build failed]
FAIL

skipped:
  TestA, TestB/part
    no engine: test/scripts/engine brings it

failed:
  TestD
    d_test.go:1: broken
        twice
`
	cmd := exec.Command("scripts/skipped")
	cmd.Stdin = strings.NewReader(printed)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
		t.Errorf("%v, printed\n%s\nwant\n%s", err, out, want)
	}
}

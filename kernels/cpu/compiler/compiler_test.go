package compiler

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestWithoutCompiler: a build without cgo says what is missing, in one line of its own. Go turns cgo off where there is no gcc.
func TestWithoutCompiler(t *testing.T) {
	program, err := exec.LookPath("go")
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(program, "build", "..")                 // package cpu, none of whose files may say anything
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=") // with -v the lines of other packages stand before it
	out, err := cmd.CombinedOutput()
	if lines := strings.Split(strings.TrimSpace(string(out)), "\n"); err == nil || len(lines) != 2 ||
		!strings.Contains(lines[1], "tandem's kernels are C: install gcc") {
		t.Errorf("error %v\n%s", err, out)
	}
}

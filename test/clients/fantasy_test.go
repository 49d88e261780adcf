package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFantasy: an agent of fantasy, the library of Crush, finishes its loop by itself, by both of OpenAI's interfaces.
func TestFantasy(t *testing.T) {
	dir := t.TempDir()
	inModule := func(arguments ...string) (string, error) {
		cmd := exec.Command("go", arguments...)
		cmd.Dir = "fantasy"
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	// A sum that is wrong or missing is a fault of the module; what else fails here is the network.
	if out, err := inModule("list", "-deps", "."); err != nil && !strings.Contains(out, "go.sum") && !strings.Contains(out, "mismatch") {
		t.Skipf("skipped: fantasy, its module cannot be fetched: %s", out)
	}
	drive := filepath.Join(dir, "drive")
	if out, err := inModule("build", "-trimpath", "-o", drive, "."); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "hello.txt"), []byte("The answer is forty-two."), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), drive, question)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "BASE="+scripted(t).url, "KEY="+key)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"chat", "chat streamed", "responses", "responses streamed"} {
		if want := name + ": 1, 2: " + lastWords + "\n"; strings.Count(string(out), want) != 1 {
			t.Errorf("%s: want %q, got %s", name, want, out)
		}
	}
}

package tandem_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestNothingBeside: no file of the repository reads what lies beside a checkout, which a stranger does not have.
func TestNothingBeside(t *testing.T) {
	beside := []byte("../" + "shared") // in two, because this file is looked at too
	for _, name := range tracked(t) {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // deleted, not yet committed
		}
		if bytes.Contains(b, beside) {
			t.Errorf("%s names %s: want what it needs in the repository", name, beside)
		}
	}
}

// tracked returns the files of the repository: those that git knows, and new ones that it does not ignore. Without git the test is skipped.
func tracked(t *testing.T) []string {
	list, err := exec.Command("git", "ls-files", "-co", "--exclude-standard", "-z").Output()
	if err != nil {
		t.Skip("not a git checkout: ", err)
	}
	return strings.Split(strings.TrimRight(string(list), "\x00"), "\x00")
}

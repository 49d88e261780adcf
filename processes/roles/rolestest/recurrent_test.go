package rolestest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit/family"
)

// TestRecurrentInAllRoles is TestFamiliesInAllRoles for a golden model with delta nets, and a draft that is the target with other low bits
// in half of its weights.
func TestRecurrentInAllRoles(t *testing.T) {
	target := family.Golden("qwen35").Write(t, t.TempDir())
	b, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	for i := len(b)/2&^3 + 2; i < len(b); i += 4 {
		b[i] ^= 0x10
	}
	draft := filepath.Join(t.TempDir(), "draft.gguf")
	if err := os.WriteFile(draft, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s := Start(t, target)
	familyInAllRoles(t, s, func() []string { return s.drafting(draft) }, 8*140/10)
}

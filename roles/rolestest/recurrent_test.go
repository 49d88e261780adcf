package rolestest

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRecurrentInAllRoles is TestFamiliesInAllRoles for a golden model with delta nets, and a draft that is the target with other low bits
// in half of its weights.
func TestRecurrentInAllRoles(t *testing.T) {
	target := "../../../shared/golden/arch2026/arch-qwen35.gguf"
	b, err := os.ReadFile(target)
	if err != nil {
		t.Skipf("%v: the model of another engine is not here", err)
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

package test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestTraining runs training/check, which needs PyTorch: where there is none, the test is skipped. The golden files of
// engine/testdata/sides check the engine against PyTorch without it.
func TestTraining(t *testing.T) {
	mayBeSlow(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../training/check")
	cmd.Env = append(os.Environ(), "TANDEM="+program)
	out, err := cmd.CombinedOutput()
	switch {
	case strings.Contains(string(out), "training needs PyTorch"):
		t.Skip(strings.TrimSpace(string(out)))
	case err != nil:
		t.Fatalf("training/check: %v\n%s", err, out)
	case !strings.Contains(string(out), "all kinds learn, read back"):
		t.Errorf("training/check printed no result:\n%s", out)
	}
}

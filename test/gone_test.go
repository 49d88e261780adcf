package test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"
)

// TestDrafterGone: a drafter whose file is gone cannot be started again. up goes on without it, and uses it when the file is back.
func TestDrafterGone(t *testing.T) {
	t.Parallel()
	draft := filepath.Join(t.TempDir(), "draft.gguf")
	model, err := os.ReadFile("../models/gopher-draft-go-f16.gguf")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(draft, model, 0o600); err != nil {
		t.Fatal(err)
	}
	g := up(t, "--draft", draft)
	want := g.run(t, setting{0, 0}.request(story, 24))
	away := draft + ".away"
	if err := os.Rename(draft, away); err != nil {
		t.Fatal(err)
	}
	g.w.signal(syscall.SIGKILL, "drafter")
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); { // five tries took a second, and ended up
		if got := g.run(t, setting{0, 0}.request(story, 24)); got.text != want.text {
			t.Fatalf("without the drafter %q: want %q", got.text, want.text)
		}
	}
	if ps := g.w.ok("ps", "--addr", "unix://"+filepath.Join(g.w.tmp, "g.sock")).stdout; !strings.Contains(ps, "down") {
		t.Errorf("ps shows\n%s: want the drafter down", ps)
	}
	if err := os.Rename(away, draft); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the drafter runs again", func() bool { return len(g.w.role("drafter")) > 0 })
}

// TestRunDirRemoved: somebody removes the run directory of a running up, as cleaners of /tmp do. Whatever dies then comes back, and texts
// stay the same.
func TestRunDirRemoved(t *testing.T) {
	t.Parallel()
	g := up(t)
	want := g.run(t, setting{0, 0}.request(story, 24))
	dirs, err := filepath.Glob(filepath.Join(g.w.tmp, "tandem-*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("run directories %q, %v: want one", dirs, err)
	}
	for _, role := range []string{"verifier", "drafter"} {
		if err := os.RemoveAll(dirs[0]); err != nil {
			t.Fatal(err)
		}
		old := g.w.role(role)
		g.w.signal(syscall.SIGKILL, role)
		testkit.Eventually(t, role+" runs again", func() bool {
			now := g.w.role(role)
			return len(now) > 0 && now[0] != old[0]
		})
		if got := g.run(t, setting{0, 0}.request(story, 24)); got.text != want.text {
			t.Errorf("after the %s: %q, want %q", role, got.text, want.text)
		}
	}
	testkit.Eventually(t, "the pool's file is there again", func() bool {
		_, err := os.Stat(filepath.Join(dirs[0],
			"pool"))
		return err == nil
	})
}

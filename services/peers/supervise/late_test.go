package supervise

import (
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"
)

// TestLate: a late child starts when the others are ready, and nobody waits for it. One that cannot start is told of, and is not the
// others' end.
func TestLate(t *testing.T) {
	t.Parallel()
	g, out := group(t)
	defer g.Stop(t.Context())
	late, broken := spec("late", true, "sleep"), spec("broken", true, "say=tandem: no such file", "exit=1")
	late.Late, broken.Late = true, true
	if err := g.Start(t.Context(), late, broken, spec("a", false, "ready", "sleep")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it starts", func() bool { return g.Pids()["late"] != 0 })
	testkit.Eventually(t, "the other is told of", func() bool {
		return strings.Contains(out.String(), "tandem: broken does not start (no such file): answers go on without it\n")
	})
	select {
	case err := <-g.Failed():
		t.Errorf("the others end: %v", err)
	default:
	}

	g, _ = group(t)
	defer g.Stop(t.Context())
	if err := g.Start(t.Context(), late, spec("a", false, "exit=1")); err == nil || g.Pids()["late"] != 0 {
		t.Errorf("error %v, processes %v: want no late one beside one that does not start", err, g.Pids())
	}
}

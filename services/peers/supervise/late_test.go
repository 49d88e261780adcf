package supervise

import (
	"fmt"
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

// TestAddAndAgain: a process can be added to those that run, and says how it ended without being their end; one that is asked for again is
// another process of the same name, and nobody says that it died. After Stop nothing is added.
func TestAddAndAgain(t *testing.T) {
	t.Parallel()
	g, out := group(t)
	if err := g.Start(t.Context(), spec("a", true, "ready", "sleep")); err != nil {
		g.Stop(t.Context())
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	for exit, name := range []string{"well", "badly"} {
		s := spec(name, false, "ready", fmt.Sprint("exit=", exit))
		s.Late, s.Ended = true, func(why error) { ended <- why }
		g.Add(s)
		if why := <-ended; (why != nil) != (exit > 0) || why != nil && why.Error() != "exit status 1" {
			t.Errorf("%s: %v", name, why)
		}
	}
	before := g.Pids()["a"]
	g.Again("a")
	g.Again("nobody")
	testkit.Eventually(t, "it runs again", func() bool { return g.Pids()["a"] != 0 && g.Pids()["a"] != before })
	if strings.Contains(out.String(), "died") || strings.Contains(out.String(), "ended") {
		t.Errorf("said %q", out)
	}
	select {
	case err := <-g.Failed():
		t.Errorf("the group ends: %v", err)
	default:
	}
	g.Stop(t.Context())
	g.Add(spec("late", false, "ready", "sleep"))
	if pids := g.Pids(); len(pids) != 0 {
		t.Errorf("%v run after Stop", pids)
	}
}

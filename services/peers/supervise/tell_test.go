package supervise

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestTellAndEnd: what a child tells after "ready" is heard to its end, a line that is too long is left out with all behind it, and one
// child can end for good while the others go on.
func TestTellAndEnd(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	heard := map[string][]string{}
	g := New(GroupConfig{Program: os.Args[0], Stderr: &lines{}, Grace: 300 * time.Millisecond, Heard: func(name, line string) {
		mu.Lock()
		defer mu.Unlock()
		heard[name] = append(heard[name], line)
	}})
	if err := g.Start(t.Context(), spec("a", true, "tell=too early", "ready", "tell=one", "tell=two", "sleep"),
		spec("b", true, "ready", "tell=three", "tell="+strings.Repeat("x", 70_000), "tell=four", "sleep")); err != nil {
		t.Fatal(err)
	}
	a := g.Pids()["a"]
	g.End("b")
	g.End("b")
	if pids := g.Pids(); len(pids) != 1 || pids["a"] != a {
		t.Errorf("%v run after the end of b: want a alone, which was %d", pids, a)
	}
	g.Stop(context.Background())
	if want := map[string][]string{"a": {"one", "two"}, "b": {"three"}}; !maps.EqualFunc(heard, want, slices.Equal) {
		t.Errorf("heard %.200v: want %v", heard, want)
	}
}

// TestSettle: it waits for those that have something left to do, says so once, and ends with its context.
func TestSettle(t *testing.T) {
	t.Parallel()
	g, _ := group(t)
	defer g.Stop(t.Context())
	done := filepath.Join(t.TempDir(), "done")
	if err := syscall.Mkfifo(done, 0o600); err != nil {
		t.Fatal(err)
	}
	waits := []string{"ready", "await=" + done, "settled", "sleep"}
	settled := spec("a", false, "ready", "settled", "sleep")
	if err := g.Start(t.Context(), settled, spec("b", true, waits...), spec("c", true, waits...)); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	said := 0
	g.Settle(ended, func() { said++; cancel() })
	g.Settle(t.Context(), func() {
		said++
		if err := os.WriteFile(done, nil, 0o600); err != nil {
			t.Error(err)
		}
	})
	g.Settle(t.Context(), func() { t.Error("not all have settled") })
	if said != 2 {
		t.Errorf("said %d times that it waits: want once for each that had to", said)
	}
}

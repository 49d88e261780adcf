package supervise

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
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

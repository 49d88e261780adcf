package hops

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles"
)

func TestWord(t *testing.T) {
	for _, c := range []struct {
		accepted int
		read     time.Duration
		want     string
	}{{0, 0, "0 0s"}, {3, 0, "3 0s"}, {0, 1500 * time.Nanosecond, "0 1µs"}, {255, 40 * time.Millisecond, "255 40ms"},
		{300, -time.Second, "255 0s"}, {1, time.Hour, "1 4.194303s"}} {
		w := word(c.accepted, c.read)
		accepted, read := wordOf(w)
		if got := fmt.Sprint(accepted, read); got != c.want || w < 0 {
			t.Errorf("%d accepted, read for %v: token %d says %s, want %s", c.accepted, c.read, w, got, c.want)
		}
	}
}

// TestTrees: a tree has exactly the nodes and levels that were asked for, and its verdict accepts its first path.
func TestTrees(t *testing.T) {
	for _, c := range []struct {
		bounds          string
		accepted        int
		nodes, depth, n int // n: accepted in the end
	}{{"none", 2, 1, 0, 0}, {"2/1/1", 0, 2, 1, 0}, {"8/5/1", 3, 8, 5, 3}, {"8/5/6", 9, 8, 5, 5}, {"4/9/1", 9, 4, 3, 3},
		{"16/2/8", 2, 16, 2, 2}} {
		b, err := tandem.ParseBounds(c.bounds)
		if err != nil {
			t.Fatal(err)
		}
		got := tree(word(c.accepted, 0), b)
		if err := got.Validate(tandem.DefaultLimits.Nodes, tandem.DefaultLimits.Vocab); err != nil {
			t.Errorf("%s: %v", c.bounds, err)
		}
		v := verdict(tandem.Ticket{Session: 7, Base: 9, Hash: 11, Tree: got}, time.Second)
		if _, depth := got.Depths(); got.Len() != c.nodes || depth != c.depth {
			t.Errorf("%s: %d nodes, depth %d: want %d, %d", c.bounds, got.Len(), depth, c.nodes, c.depth)
		}
		if len(v.Path) != c.n || len(v.Tokens) != c.n+1 || v.Session != 7 || v.Base != 9 || v.Hash != 11 || v.Busy != time.Second ||
			v.Nodes != c.nodes || v.Kind != tandem.OK {
			t.Errorf("%s: verdict %+v: want %d accepted", c.bounds, v, c.n)
		}
	}
	if v := verdict(tandem.Ticket{Session: 7}, 0); v.Kind != tandem.Stale {
		t.Errorf("without a tree: %+v, want Stale", v)
	}
}

// borrowed is a device that its owner closes.
type borrowed struct{ roles.Device }

func (borrowed) Close() {}

// TestRounds: rounds of all shapes take the whole way, and the time for which memory is read does not count.
func TestRounds(t *testing.T) {
	dir, err := os.MkdirTemp("", "hops") // t.TempDir would be too long a path for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	addr := func(name string) string { return "unix://" + filepath.Join(dir, name+".sock") }
	pool := filepath.Join(dir, "pool")
	g, err := Start(t.Context(), Config{Config: roles.Config{Listen: addr("gateway")}, Verifier: addr("verifier"),
		Drafter: addr("drafter"), PoolFile: pool})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	device := testdevice.CPU(t, 1)
	for name, run := range map[string]func(context.Context, Peer) error{"drafter": RunDrafter, "verifier": RunVerifier} {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			ended <- run(ctx, Peer{Config: roles.Config{Listen: addr(name)}, Pool: "file:" + pool, Drafter: addr("drafter"),
				Models: roles.Models{Threads: 1, Device: func(int) (roles.Device, error) { return borrowed{device}, nil }}})
		}()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("%s ended: %v", name, err)
			}
		})
	}
	if err := g.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	tree := tandem.DefaultBounds(tandem.StrategyFixed)
	const read = 100 * time.Millisecond
	for _, c := range []struct {
		Shape
		rounds, mapped int // of the trees, how many the verifier read in shared memory
	}{{Shape{Prompt: 64}, 20, 0}, {Shape{Bounds: tree, Accepted: 3, Prompt: 64}, 20, 20},
		{Shape{Bounds: tree, Accepted: 99, Prompt: 1, Read: read}, 3, 3}, {Shape{Read: read}, 3, 0}} {
		before, begun := mapped(t, g), time.Now()
		took, err := g.Rounds(t.Context(), c.rounds, c.Shape)
		if err != nil {
			t.Fatal(err)
		}
		if len(took) != c.rounds || slices.Min(took) <= 0 {
			t.Errorf("%+v: rounds took %v: want %d times above 0", c.Shape, took, c.rounds)
		}
		if all := time.Since(begun); all < time.Duration(c.rounds)*c.Read || c.Read > 0 && slices.Min(took) >= c.Read {
			t.Errorf("%+v: rounds took %v, in all %v: want memory to be read in each, and not to count", c.Shape, took, all)
		}
		if n := mapped(t, g) - before; n < c.mapped || n > 2*c.mapped { // on a busy machine a ticket is sent again, and read again
			t.Errorf("%+v: the verifier read %d trees in shared memory, want %d", c.Shape, n, c.mapped)
		}
	}
	g.deliver(tandem.Verdict{Session: g.next, Base: 65}) // nobody has asked
	if took, err := g.Rounds(t.Context(), 1, Shape{}); err != nil || len(took) != 1 {
		t.Errorf("after a verdict that nobody awaits: %v, %v", took, err)
	}
}

// mapped returns how many trees the verifier has read in shared memory.
func mapped(t *testing.T, g *Gateway) int {
	t.Helper()
	d, err := g.direct.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return int(d.Counters["tickets.mapped"])
}

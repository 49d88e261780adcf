package test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/test/testkit"
)

// fleet is two gateways, three verifiers and a drafter, each a process that was started by hand; one gateway runs the pool, and verifiers
// and drafter are found through it.
type fleet struct {
	t         *testing.T
	w         *world
	gateways  []*process
	clients   []*client.Client
	verifiers []*process
	drafter   *process
	addrs     []string // of verifiers
}

func (f *fleet) socket(name string) string { return "unix://" + filepath.Join(f.w.home, name+".sock") }

// startFleet starts a fleet, with more flags for each of its processes.
func startFleet(t *testing.T, flags ...string) *fleet {
	f := &fleet{t: t, w: newWorld(t)}
	file := filepath.Join(f.w.home, "pool")
	gateway := func(name string, more ...string) {
		p := byHand(t, f.w, append([]string{"gateway", "--target", targetModel, "--listen", f.socket(name), "--http", "off", "--verifier",
			f.socket("none"), "--sessions", "8"}, slices.Concat(more, flags)...)...)
		f.gateways = append(f.gateways, p)
		c, err := client.Dial(f.socket(name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		f.clients = append(f.clients, c)
	}
	gateway("ga", "--pool-file", file, "--pool-store", "memory")
	gateway("gb", "--pool", "file:"+file)
	f.gateways[0].start()
	for i := range 3 {
		addr := f.socket(fmt.Sprint("v", i))
		f.addrs = append(f.addrs, addr)
		f.verifiers = append(f.verifiers, byHand(t, f.w, append([]string{"verifier", "--target", targetModel, "--listen", addr, "--pool",
			"file:" + file, "--threads", "1", "--no-measure", "--sessions", "16"}, flags...)...))
		f.verifiers[i].start()
	}
	f.drafter = byHand(t, f.w, append([]string{"drafter", "--draft", draftModel, "--listen", f.socket("d"), "--pool", "file:" + file,
		"--threads", "1", "--sessions", "16"}, flags...)...)
	f.drafter.start()
	f.gateways[1].start()
	return f
}

// up waits until every gateway that runs knows so many verifiers in that state.
func (f *fleet) up(state string, n int) {
	f.t.Helper()
	for _, c := range f.clients {
		testkit.Eventually(f.t, fmt.Sprintf("%d verifiers to be %s", n, state), func() bool {
			d, err := c.Describe(f.t.Context())
			is := 0
			for _, m := range d.GetFleet() {
				if m.GetRole() == "verifier" && m.GetState() == state {
					is++
				}
			}
			return err == nil && is == n
		})
	}
}

// TestFleetOutlivesBoxes: verifiers are killed and drained, and the gateway that does not run the pool is killed, under streams of two
// gateways: every text is whole, and as it is without that.
func TestFleetOutlivesBoxes(t *testing.T) {
	mayBeSlow(t)
	t.Parallel()
	f := startFleet(t)
	f.up("up", 3)
	request := func(i int) client.Request {
		return client.Request{Prompt: fmt.Sprintf("// Function %d returns", i%6), MaxTokens: new(120), IgnoreEOS: true,
			Temperature: new(0.8 * float64(i%2)), Seed: new(uint64(i % 6))}
	}
	text := func(c *client.Client, i int) (out []uint32, err error) {
		for e, err := range c.Generate(t.Context(), request(i)) {
			if err != nil {
				return out, err
			}
			if e.Delta != nil {
				out = append(out, e.Delta.Tokens...)
			}
		}
		return out, nil
	}
	want := make([][]uint32, 6)
	for i := range want {
		var err error
		if want[i], err = text(f.clients[0], i); err != nil || len(want[i]) != 120 {
			t.Fatal(want[i], err)
		}
	}
	var stop atomic.Bool
	var done atomic.Int64
	var all sync.WaitGroup
	for n, c := range f.clients {
		for k := range 3 {
			all.Go(func() {
				for i := n + k; !stop.Load(); i++ {
					if got, err := text(c, i); err != nil || !slices.Equal(got, want[i%6]) {
						t.Errorf("gateway %d, request %d: %v, tokens\n%v, without faults\n%v", n, i, err, got, want[i%6])
						return
					}
					done.Add(1)
				}
			})
		}
	}
	more := func(n int64) {
		t.Helper()
		n += done.Load()
		testkit.Eventually(t, "requests to end", func() bool { return done.Load() >= n || t.Failed() })
	}
	r := newRandom(t)
	more(6)
	for range 3 {
		i := r.IntN(3)
		f.verifiers[i].kill()
		more(2 + r.Int64N(6))
		f.verifiers[i].start()
		f.up("up", 3)
	}
	f.gateways[1].kill()
	time.Sleep(time.Second)
	f.gateways[1].start()
	f.w.ok("drain", f.addrs[0])
	f.up("draining", 1)
	testkit.Eventually(t, "the drained verifier to be empty", func() bool {
		d, err := f.clients[0].Describe(t.Context())
		for _, m := range d.GetFleet() {
			if m.GetAddress() == f.addrs[0] {
				return err == nil && m.GetRunning() == 0
			}
		}
		return false
	})
	more(6)
	stop.Store(true)
	all.Wait()
}

// TestDrainOfOthers: what cannot be drained is named, with what can.
func TestDrainOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gateway, none := "unix://"+filepath.Join(w.home, "g.sock"), "unix://"+filepath.Join(w.home, "none.sock")
	byHand(t, w, "gateway", "--target", targetModel, "--listen", gateway, "--http", "off", "--verifier", none).start()
	for addr, want := range map[string]string{gateway: gateway + " is no verifier or drafter", none: "nothing listens at " + none} {
		if e := w.run("drain", addr); e.code != 1 || !strings.Contains(e.stderr, want) {
			t.Errorf("drain %s: exit code %d, %q: want %q", addr, e.code, e.stderr, want)
		}
	}
}

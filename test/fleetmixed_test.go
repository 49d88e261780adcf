package test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/test/testkit"
)

// kind is a verifier of a mixed fleet.
type kind struct {
	name    string
	program []string // and its first arguments; none: the program under test
	flags   []string
	alien   bool // it must get no session
	addr    string
	run     *process
}

// mixedFleet is a gateway that runs the pool, a drafter and verifiers of several kinds.
type mixedFleet struct {
	t      *testing.T
	client *client.Client
	w      *world
	kinds  []*kind
	tokens int // of each text
	want   [][]uint32
	done   atomic.Int64
}

func (f *mixedFleet) request(i int) client.Request {
	return client.Request{Prompt: fmt.Sprintf("// Function %d returns", i%4), MaxTokens: new(f.tokens), IgnoreEOS: true,
		Temperature: new(0.8 * float64(i%2)), Seed: new(uint64(i % 4))}
}

// text generates one of the four texts.
func (f *mixedFleet) text(i int) (out []uint32, err error) {
	for e, err := range f.client.Generate(f.t.Context(), f.request(i)) {
		if err != nil {
			return out, err
		}
		if e.Delta != nil {
			out = append(out, e.Delta.Tokens...)
		}
	}
	return out, nil
}

// startMixed starts the fleet and generates the texts by the first kind alone.
func startMixed(t *testing.T, tokens int, kinds ...*kind) *mixedFleet {
	w := newWorld(t)
	f := &mixedFleet{t: t, w: w, tokens: tokens, kinds: kinds}
	socket := func(name string) string { return "unix://" + filepath.Join(w.home, name+".sock") }
	file := filepath.Join(w.home, "pool")
	byHand(t, w, "gateway", "--target", targetModel, "--listen", socket("g"), "--http", "off", "--verifier", socket("none"),
		"--pool-file", file, "--pool-store", "memory", "--sessions", "8").start()
	var err error
	if f.client, err = client.Dial(socket("g")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.client.Close() })
	for i, k := range kinds {
		k.addr = socket(fmt.Sprint("v", i))
		args := append([]string{"verifier", "--target", targetModel, "--listen", k.addr, "--pool", "file:" + file, "--threads", "1",
			"--no-measure", "--sessions", "16"}, k.flags...)
		k.run = byHand(t, w, args...)
		if plain := k.run.make; k.program != nil {
			k.run.make = func(ctx context.Context) *exec.Cmd {
				cmd := plain(ctx)
				cmd.Path, cmd.Args = k.program[0], append(slices.Clone(k.program), cmd.Args[1:]...)
				return cmd
			}
		}
		k.run.start()
		if i > 0 {
			continue
		}
		f.up(1)
		for n := range 4 {
			text, err := f.text(n)
			if err != nil || len(text) != tokens {
				t.Fatal(text, err)
			}
			f.want = append(f.want, text)
		}
	}
	byHand(t, w, "drafter", "--draft", draftModel, "--listen", socket("d"), "--pool", "file:"+file, "--threads", "1", "--sessions",
		"16").start()
	return f
}

// members returns the verifiers that the gateway knows and that are up.
func (f *mixedFleet) members() (out []*tandemv1.Member) {
	d, _ := f.client.Describe(f.t.Context())
	for _, m := range d.GetFleet() {
		if m.GetRole() == "verifier" && m.GetState() == "up" {
			out = append(out, m)
		}
	}
	return out
}

// up waits until n verifiers are up.
func (f *mixedFleet) up(n int) {
	f.t.Helper()
	testkit.Eventually(f.t, fmt.Sprintf("%d verifiers to be up", n), func() bool { return len(f.members()) == n })
}

// load generates texts until end is called.
func (f *mixedFleet) load(streams int) (end func()) {
	var stop atomic.Bool
	var all sync.WaitGroup
	for k := range streams {
		all.Go(func() {
			for i := k; !stop.Load(); i++ {
				if got, err := f.text(i); err != nil || !slices.Equal(got, f.want[i%4]) {
					f.t.Errorf("request %d: %v, tokens\n%v, of the first verifier alone\n%v", i, err, got, f.want[i%4])
					return
				}
				f.done.Add(1)
			}
		})
	}
	return func() { stop.Store(true); all.Wait() }
}

// passes returns how many passes a verifier has run.
func (f *mixedFleet) passes(k *kind) int64 {
	d, _ := f.client.Describe(f.t.Context())
	for _, p := range d.GetProcesses() {
		if int(p.GetPid()) == k.run.cmd.Process.Pid {
			return p.GetCounters()["passes"]
		}
	}
	return 0
}

// rounds gives all sessions to each verifier in turn, by draining the others, and wants the same texts.
func (f *mixedFleet) rounds() {
	defer f.load(4)()
	for _, k := range f.kinds {
		if k.alien {
			continue
		}
		for _, o := range f.kinds {
			if o != k && !o.alien {
				f.w.ok("drain", o.addr)
			}
		}
		before, n := f.passes(k), f.done.Load()
		testkit.Eventually(f.t, "texts of verifier "+k.name, func() bool {
			return f.t.Failed() || f.done.Load() >= n+3 && f.passes(k) > before+8
		})
		for _, o := range f.kinds {
			if o != k && !o.alien {
				f.w.ok("drain", "--undo", o.addr)
			}
		}
		f.t.Logf("%s: %d passes", k.name, f.passes(k))
	}
}

// TestMixedFleet: verifiers of several instruction sets and releases continue each other's sessions with the same tokens. One of other
// arithmetic is in the fleet and gets none of them; one of another protocol is not in it.
func TestMixedFleet(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	release := otherRelease(t, [3]string{"cmd/tandem/version.go", `Version: "devel"`, `Version: "another"`})
	arithmetic := &kind{name: "other arithmetic", program: []string{otherArithmetic(t)}, alien: true}
	protocol := otherRelease(t, [3]string{"peers.go", fmt.Sprintf("const Protocol = %d", tandem.Protocol),
		fmt.Sprintf("const Protocol = %d", tandem.Protocol+1)})
	f := startMixed(t, 60, &kind{name: "best"}, &kind{name: "generic", flags: []string{"--isa", "generic"}},
		&kind{name: "another release", program: []string{release}}, arithmetic,
		&kind{name: "other protocol", program: []string{protocol}, alien: true})
	f.up(4)
	f.rounds()
	versions := map[string]int{}
	for _, m := range f.members() {
		versions[m.GetVersion()]++
	}
	if versions["another"] != 1 || len(f.members()) != 4 {
		t.Errorf("versions of the fleet: %v, want one of another and four in all", versions)
	}
	if n := f.passes(arithmetic); n > 0 {
		t.Errorf("a verifier of other arithmetic has run %d passes for sessions of this one", n)
	}
}

// TestMixedFleetARM: a processor with NEON, which qemu imitates, continues sessions of this one and gives them back.
func TestMixedFleetARM(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	x := armTools(t)
	arm := filepath.Join(t.TempDir(), "tandem")
	x.build(t, "build", "-o", arm, "../cmd/tandem")
	f := startMixed(t, 24, &kind{name: "best"}, &kind{name: "neon", program: []string{x.qemu, "-cpu", "cortex-a72", arm}},
		&kind{name: "neon-i8mm", program: []string{x.qemu, "-cpu", "max", arm}})
	f.up(3)
	f.rounds()
}

package test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"
)

// drafted returns the process id of the drafter that the gateway reaches, 0 if there is none, and how many trees it has drafted.
func (g *group) drafted(t testing.TB) (pid int, trees int64) {
	t.Helper()
	d, err := g.client.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Processes {
		if p.Role == "drafter" && p.Up && p.Pid != 0 {
			pid, trees = int(p.Pid), trees+p.Counters["drafts"]
		}
	}
	return pid, trees
}

// TestDraftInside: in the least memory that holds the shipped draft with states it runs in the process of its streamed target. That process
// is killed under several sessions, most often while it drafts or reads weights: it is back, drafts, and every request ends with the tokens
// of plain decoding. The file of the draft is damaged then, and another kill costs the sessions the draft alone; a first start is refused
// with it.
func TestDraftInside(t *testing.T) {
	mayBeSlow(t)
	r := newRandom(t)
	kills := 5
	if *long {
		kills = 60
	}
	dir := disk(t)
	shipped, err := os.ReadFile("../models/gopher-dovetail-q8_0.gguf")
	if err != nil {
		t.Fatal(err)
	}
	draft := filepath.Join(dir, "own.gguf")
	if err := os.WriteFile(draft, shipped, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--draft", draft, "--set", "draft-anyway=true", "--ctx", "512", "--sessions", "4"}
	w := newWorld(t)
	args = append(args, "--memory-budget", w.leastBudget(args...), "--cache", dir)
	g := up(t, args...)
	jobs := g.workload(t, 4, 48)
	g.once(t, jobs)
	verifier := g.w.one(t, "verifier")
	if pid, trees := g.drafted(t); pid != verifier || trees == 0 || len(g.w.role("drafter")) > 0 {
		t.Errorf("process %d has drafted %d trees, there are %d processes of drafters: want trees of the verifier's process, %d", pid,
			trees, len(g.w.role("drafter")), verifier)
	}
	x := g.startTraffic(t, jobs)
	testkit.Eventually(t, "output of every session", func() bool { return x.advanced(time.Time{}) })
	kill := func() {
		_, drafted := g.drafted(t)
		drafted += 1 + r.Int64N(20)
		testkit.Eventually(t, "some more trees", func() bool { _, trees := g.drafted(t); return trees >= drafted })
		victim := g.w.one(t, "verifier")
		_ = syscall.Kill(victim, syscall.SIGKILL)
		g.back(t, "verifier", victim)
		back := time.Now()
		testkit.Eventually(t, "output of every session after a kill", func() bool { return x.advanced(back) })
	}
	for n := 0; n < kills && !t.Failed(); n++ {
		kill()
		testkit.Eventually(t, "trees of the draft", func() bool { pid, trees := g.drafted(t); return pid != 0 && trees > 0 })
	}
	if err := os.Truncate(draft, int64(len(shipped)/2)); err != nil {
		t.Fatal(err)
	}
	kill()
	x.end()
	if pid, _ := g.drafted(t); pid != 0 || x.drafted == 0 || x.failed > 0 {
		t.Errorf("process %d drafts from a damaged file; %d rounds had drafts, %d requests failed", pid, x.drafted, x.failed)
	}
	g.once(t, jobs)
	refused(t, w.run(append([]string{"generate", "--prompt", "x"}, args...)...), "own.gguf")
}

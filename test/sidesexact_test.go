package test

import (
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"
)

// Everything that was trained for the tiny target, and the target itself, whose drafts are always right: accepted paths are long.
var (
	sideHeads  = []string{"--heads", sides + "medusa-shared.gguf", "--heads", sides + "ppd-4.gguf"}
	sideDrafts = []string{"--draft", sides + "dovetail.gguf", "--draft", sides + "eagle.gguf", "--draft", sides + "eagle3.gguf", "--draft",
		sideTarget}
	sideNames = []string{"medusa", "ppd", "dovetail", "eagle", "eagle3", "target"}
)

// sideJobs returns eight requests of the tiny target, whose context is 64, half of them at temperature 1, and what plain decoding says.
func (g *group) sideJobs(t testing.TB) []job {
	t.Helper()
	jobs := make([]job, 8)
	for i := range jobs {
		p := prompts(t)[7*i]
		s := setting{float64(i % 2), uint64(i)}
		r := s.request(strings.ToValidUTF8(p.Prompt[:6+2*i], "?"), 40)
		r.IgnoreEOS = true
		got := g.run(t, plain(r))
		if len(got.tokens) != 40 || got.finished.Statistics.Drafted != 0 {
			t.Fatalf("%s: plain decoding: %d tokens, %d nodes drafted", p.ID, len(got.tokens), got.finished.Statistics.Drafted)
		}
		jobs[i] = job{p.ID + ", " + s.String(), r, got.tokens}
	}
	return jobs
}

// speculated runs all jobs at the same time in one way and returns the rounds of each drafter, and what was accepted of it.
func (g *group) speculated(t testing.TB, jobs []job, s speculation) (rounds, accepted map[string]int) {
	t.Helper()
	var mu sync.Mutex
	rounds, accepted = map[string]int{}, map[string]int{}
	var wg sync.WaitGroup
	for _, j := range jobs {
		wg.Go(func() {
			got, err := g.try(t.Context(), s.of(j.request))
			if err != nil || !slices.Equal(got.tokens, j.want) {
				t.Errorf("%s, %v: %v: tokens\n%v, plain\n%v", j.id, s, err, got.tokens, j.want)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, d := range got.finished.Statistics.Drafters {
				rounds[d.Name] += d.Rounds
				accepted[d.Name] += d.Accepted
			}
		})
	}
	wg.Wait()
	return rounds, accepted
}

// everySide speculates with each side file alone and with all together, by every strategy; the text is that of plain decoding.
func (g *group) everySide(t testing.TB, jobs []job) {
	t.Helper()
	for i, name := range sideNames {
		s := speculation{strategy: allStrategies[i%len(allStrategies)], drafters: []string{name}}
		g.speculated(t, jobs, s)
		s.strategy, s.tree = "fixed", &trees[i%2]
		testkit.Eventually(t, name+" to draft alone", func() bool { // the drafter may be late where cores are few
			rounds, _ := g.speculated(t, jobs, s)
			return rounds[name] > 0 || t.Failed()
		})
	}
	all := append(slices.Clone(sideNames), "lookup")
	for _, s := range []speculation{{strategy: "planner"}, {strategy: "llmcad"}, {strategy: "minions", vote: "majority", drafters: all},
		{strategy: "minions", vote: "tree", drafters: all}, {strategy: "minions", vote: "tree", drafters: sideNames[:3]}} {
		testkit.Eventually(t, s.String()+": all to draft, and some of what the target itself drafted to be accepted", func() bool {
			rounds, accepted := g.speculated(t, jobs, s)
			idle := func(name string) bool {
				return name != "lookup" && rounds[name] == 0 || name == "target" && accepted[name] == 0
			}
			return !slices.ContainsFunc(s.drafters, idle) || t.Failed()
		})
	}
}

// TestSidesExact: heads, prompt tokens and drafts that see the target's states leave the text of each of eight requests at a time that of
// plain decoding, alone, merged and by the planner, and while drafter and verifier die and come back. On one host states come through
// shared memory.
func TestSidesExact(t *testing.T) {
	t.Parallel()
	g := up(t, slices.Concat([]string{"--target", sideTarget}, sideHeads, sideDrafts)...)
	jobs := g.sideJobs(t)
	g.everySide(t, jobs)
	testkit.Eventually(t, "states in shared memory, and guesses", func() bool {
		n := g.allCounters(t)
		for _, name := range []string{"drafter features.came", "verifier features.shared", "gateway guesses.taken"} {
			if n[name] == 0 {
				g.speculated(t, jobs, speculation{strategy: "minions", vote: "tree", drafters: sideNames})
				return false
			}
		}
		return true
	})
	g.soundSides(t)
	g.killSides(t, jobs)
}

// soundSides checks that no process has counted garbage.
func (g *group) soundSides(t testing.TB) {
	t.Helper()
	n := g.allCounters(t)
	for _, name := range []string{"drafter features.corrupt", "gateway guesses.garbage", "verifier guesses.failed", "verifier faults",
		"drafter faults", "verifier tickets.garbage", "gateway drafter.garbage"} {
		if n[name] != 0 {
			t.Errorf("%s is %d", name, n[name])
		}
	}
}

// killSides kills drafter and verifier under eight requests that speculate in eight ways.
func (g *group) killSides(t testing.TB, jobs []job) {
	t.Helper()
	jobs = slices.Clone(jobs)
	for i, s := range []speculation{{strategy: "planner"}, {strategy: "fixed", drafters: []string{"medusa"}, tree: &trees[0]},
		{strategy: "fixed", drafters: []string{"ppd"}, tree: &trees[0]}, {strategy: "fixed", drafters: []string{"dovetail"}},
		{strategy: "fixed", drafters: []string{"eagle3"}}, {strategy: "minions", vote: "tree", drafters: sideNames},
		{strategy: "minions", vote: "majority", drafters: sideNames[:4]}, {strategy: "llmcad", drafters: []string{"medusa", "target"}}} {
		jobs[i].request = s.of(jobs[i].request)
	}
	r := newRandom(t)
	x := g.startTraffic(t, jobs)
	for _, role := range []string{"drafter", "verifier", "verifier", "drafter"} {
		time.Sleep(between(r, 50*time.Millisecond, 250*time.Millisecond))
		victim := g.w.one(t, role)
		_ = syscall.Kill(victim, syscall.SIGKILL)
		g.back(t, role, victim)
		back := time.Now()
		testkit.Eventually(t, "output of every session after a kill of the "+role, func() bool { return x.advanced(back) })
	}
	x.end()
	if x.reopened == 0 || x.drafted == 0 {
		t.Errorf("sessions were opened again %d times, and %d nodes drafted: no kill has met a session", x.reopened, x.drafted)
	}
	t.Logf("%d requests, whose sessions were opened again %d times", x.completed, x.reopened)
}

// TestSidesOverTCP: the same with drafter and verifier at ports, where states come inside answers, and after a restart of each.
func TestSidesOverTCP(t *testing.T) {
	mayBeSlow(t)
	t.Parallel()
	c := newCluster(t, clusterConfig{tcp: true, target: sideTarget, draft: sideTarget, drafterFlags: append([]string{"--target",
		sideTarget}, sideDrafts[:6]...), verifierFlags: append(slices.Clone(sideHeads), "--taps=-1,1,2,3")})
	jobs := c.sideJobs(t)
	came := func(what string) {
		t.Helper()
		testkit.Eventually(t, "states and guesses "+what, func() bool {
			before := c.allCounters(t)
			for _, names := range [][]string{{"dovetail"}, {"eagle3"}, {"medusa", "ppd"}} {
				c.speculated(t, jobs, speculation{strategy: "minions", vote: "tree", drafters: names})
			}
			n := c.allCounters(t)
			return n["drafter features.came"] > before["drafter features.came"] &&
				n["gateway guesses.taken"] > before["gateway guesses.taken"]
		})
	}
	came("over TCP")
	c.everySide(t, jobs)
	for _, p := range []*process{c.drafters[0], c.verifier} {
		p.kill()
		p.start()
		came("after a kill of the " + p.name)
	}
	if n := c.allCounters(t)["verifier features.shared"]; n != 0 {
		t.Errorf("%d answers were in shared memory", n)
	}
	c.soundSides(t)
}

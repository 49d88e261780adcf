package test

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem/client"
)

// dearest is what the loss of a drafter may cost a session.
const dearest = 250 * time.Millisecond

// up reports whether the gateway reaches a process of that role whose id is not old.
func (g *group) up(t testing.TB, role string, old int) bool {
	t.Helper()
	d, err := g.client.Describe(t.Context())
	if err != nil {
		return false
	}
	for _, p := range d.Processes {
		if p.Role == role && p.Up && int(p.Pid) != old {
			return true
		}
	}
	return false
}

// one returns the id of the role's only process.
func (w *world) one(t testing.TB, role string) int {
	t.Helper()
	var pids []int
	testkit.Eventually(t, role+" to be alive", func() bool { pids = w.role(role); return len(pids) == 1 })
	return pids[0]
}

// back waits until another process of the role serves than old, and returns how long that took.
func (g *group) back(t testing.TB, role string, old int) time.Duration {
	t.Helper()
	begun := time.Now()
	testkit.Eventually(t, "another "+role, func() bool { return g.up(t, role, old) })
	return time.Since(begun)
}

// TestFaults kills and stops drafter and verifier at random moments under 16 sessions: every request
// ends, with the tokens of plain decoding; the loss of the drafter costs a session next to nothing; the
// verifier is back soon; and nothing is left of what died.
func TestFaults(t *testing.T) {
	mayBeSlow(t)
	r := newRandom(t)
	faults, longest := 12, 300*time.Millisecond
	if *long {
		faults, longest = 200, 3*time.Second
	}
	g := up(t, "--sessions", "16", "--inline-limit", "0")
	jobs := g.workload(t, 16, 48)

	verifier := g.w.one(t, "verifier")
	_ = syscall.Kill(verifier, syscall.SIGKILL)
	load := g.back(t, "verifier", verifier) // nobody uses it: all but the load is a few milliseconds
	g.once(t, jobs)
	before := g.w.usages()

	x := g.startTraffic(t, jobs)
	testkit.Eventually(t, "output of every session", func() bool { return x.advanced(time.Time{}) })
	undisturbed := time.Now()
	time.Sleep(300 * time.Millisecond)
	quiet, round := x.longest(undisturbed, time.Now())
	var worst, worstStop, slowest time.Duration
	kills, stops := 0, 0
	for n := 0; n < faults && !t.Failed(); n++ {
		begun := time.Now()
		time.Sleep(between(r, 0, 300*time.Millisecond))
		before, _ := x.longest(begun, time.Now())
		quiet = max(quiet, before)
		role := []string{"drafter", "verifier"}[r.IntN(2)]
		victim := g.w.one(t, role)
		stop := r.IntN(2) == 0
		at := time.Now()
		if stop {
			stops++
			length := between(r, 100*time.Millisecond, longest)
			_ = syscall.Kill(victim, syscall.SIGSTOP)
			time.Sleep(length)
			if role == "drafter" {
				most, _ := x.longest(at, time.Now())
				worstStop = max(worstStop, most-round)
			}
			_ = syscall.Kill(victim, syscall.SIGCONT)
		} else {
			kills++
			_ = syscall.Kill(victim, syscall.SIGKILL)
			if role == "drafter" {
				testkit.Eventually(t, "output of every session without the drafter", func() bool { return x.advanced(at) })
				time.Sleep(dearest)
				most, _ := x.longest(at, at.Add(dearest))
				worst = max(worst, most-round)
			}
			g.back(t, role, victim)
			if took := time.Since(at); role == "verifier" {
				slowest = max(slowest, took)
			}
		}
		recovered := time.Now()
		testkit.Eventually(t, "output of every session after a fault of the "+role, func() bool { return x.advanced(recovered) })
	}
	x.end()
	t.Logf("%d kills and %d stops under %d requests, sessions opened again %d times; silence between deltas: median %v, longest "+
		"undisturbed %v; "+
		"drafter killed: %v more than the median, stopped: %v; verifier back after %v, its load takes %v",
		kills, stops, x.completed, x.reopened, round, quiet, worst, worstStop, slowest, load)
	if most := dearest + quiet - round; worst > most {
		t.Errorf("the loss of a drafter cost a session %v: want at most %v more than the %v that sessions are silent anyway", worst,
			dearest, quiet)
	}
	if slowest > load+3*time.Second {
		t.Errorf("the verifier was back after %v: want at most its load time, %v, and 3 s", slowest, load)
	}
	if x.drafted == 0 {
		t.Error("nothing was drafted: did speculation run at all?")
	}
	g.once(t, jobs)
	g.settled(t, before, 8*time.Second)
}

// lost is the error of a request whose gateway has died.
func lost(err error) bool { return errors.Is(err, client.Unavailable) }

// TestGatewayKilled kills the gateway under 16 sessions: their requests end with an error at once, and
// a new gateway serves, whose verifier and drafter have forgotten what the old one left behind.
func TestGatewayKilled(t *testing.T) {
	mayBeSlow(t)
	r := newRandom(t)
	kills := 2
	if *long {
		kills = 40
	}
	c := newCluster(t, clusterConfig{sessions: 16})
	jobs := c.workload(t, 16, 60)
	c.once(t, jobs)
	before := c.w.usages()
	for n := 0; n < kills && !t.Failed(); n++ {
		x := c.startTraffic(t, jobs)
		x.failing = lost
		time.Sleep(between(r, 0, 600*time.Millisecond))
		if r.IntN(3) == 0 { // it may as well be slow before it dies
			_ = c.gateway.cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(between(r, 100*time.Millisecond, 500*time.Millisecond))
			_ = c.gateway.cmd.Process.Signal(syscall.SIGCONT)
			time.Sleep(between(r, 0, 200*time.Millisecond))
		}
		c.gateway.kill()
		killed := time.Now()
		x.end()
		if took := time.Since(killed); took > 2*time.Second {
			t.Errorf("requests ended %v after their gateway", took)
		}
		if x.failed == 0 {
			t.Error("no request has noticed that its gateway died")
		}
		c.gateway.start()
		served := time.Now()
		c.once(t, jobs)
		t.Logf("%d requests completed and %d failed; 16 requests to the new gateway took %v", x.completed, x.failed, time.Since(served))
	}
	c.settled(t, before, 8*time.Second)
	if left := sessionsIn(c.gateway.goroutines()); len(left) > 0 {
		t.Errorf("%d goroutines of requests that have ended are left in the gateway, such as\n%s", len(left), left[0])
	}
}

// sessionsIn returns the stacks that belong to a request or its session.
func sessionsIn(stacks []string) (left []string) {
	for _, s := range stacks {
		if strings.Contains(s, "gateway.(*session)") || strings.Contains(s, "gateway.(*Gateway).Generate") ||
			strings.Contains(s, "gateway.(*drafting)") {
			left = append(left, s)
		}
	}
	return left
}

// TestNATSKilled kills and stops the pool's server under 8 sessions: decoding goes on without it, and
// speculation is back when it is.
func TestNATSKilled(t *testing.T) {
	mayBeSlow(t)
	t.Parallel()
	r := newRandom(t)
	outages := 3
	if *long {
		outages = 30
	}
	c := newCluster(t, clusterConfig{})
	jobs := c.workload(t, 8, 100)
	c.once(t, jobs)
	before := c.w.usages()
	x := c.startTraffic(t, jobs)
	var longest time.Duration
	for n := 0; n < outages && !t.Failed(); n++ {
		time.Sleep(between(r, 100*time.Millisecond, 400*time.Millisecond))
		at := time.Now()
		if stop := n%3 == 2; stop {
			_ = c.nats.cmd.Process.Signal(syscall.SIGSTOP)
		} else {
			c.nats.kill()
		}
		time.Sleep(between(r, 500*time.Millisecond, time.Second))
		testkit.Eventually(t, "output of every session without the pool's server",
			func() bool { return x.advanced(at.Add(200 * time.Millisecond)) })
		most, _ := x.longest(at, time.Now())
		longest = max(longest, most)
		if n%3 == 2 {
			_ = c.nats.cmd.Process.Signal(syscall.SIGCONT)
		} else {
			c.beginNATS(t)
		}
		back := time.Now()
		testkit.Eventually(t, "output of every session after the pool's server came back", func() bool { return x.advanced(back) })
	}
	x.end()
	t.Logf("%d outages under %d requests; longest silence %v", outages, x.completed, longest)
	testkit.Eventually(t, "drafts after the outages", func() bool {
		got, err := c.try(t.Context(), jobs[0].request)
		return err == nil && got.finished.Statistics.Drafted > got.finished.Statistics.Rounds
	})
	c.once(t, jobs)
	c.settled(t, before, 8*time.Second)
	if left := sessionsIn(c.gateway.goroutines()); len(left) > 0 {
		t.Errorf("%d goroutines of requests that have ended are left in the gateway, such as\n%s", len(left), left[0])
	}
}

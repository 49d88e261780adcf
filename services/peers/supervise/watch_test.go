package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"
)

const tick = 500 * time.Millisecond

// clock is a watch of a child with beats that the test moves, and time that passes in ticks.
type clock struct {
	watch
	beats  []beat
	waited time.Duration // for a processor in each tick
}

func newClock(beats ...beat) *clock { return &clock{watch: watch{hang: 5 * time.Second}, beats: beats} }

// pass lets so much time pass and returns after how much of it the child was found to hang, and what it was doing; 0 if it was not.
func (c *clock) pass(d time.Duration, each func()) (time.Duration, string) {
	for at := tick; at <= d; at += tick {
		if each != nil {
			each()
		}
		if what := c.look(c.beats, tick, func() time.Duration { return c.waited }); what != "" {
			return at, what
		}
	}
	return 0, ""
}

func TestWatch(t *testing.T) {
	for name, tc := range map[string]struct {
		beat   beat
		after  time.Duration // it hangs; 0: it does not within an hour
		doing  string
		waited time.Duration
	}{
		"outside of a pass": {beat: beat{}, after: 5 * time.Second, doing: "outside of a pass"},
		"in a quick pass": {beat: beat{rows: 8, time: 30 * time.Millisecond}, after: 5 * time.Second,
			doing: "in a pass of 8 rows that should take 30ms"},
		"in a slow pass": {beat: beat{rows: 128, time: 4 * time.Second}, after: 40 * time.Second,
			doing: "in a pass of 128 rows that should take 4s"},
		"in a pass of which nothing is known":  {beat: beat{rows: 1}, after: 10 * time.Minute, doing: "in a pass of 1 rows"},
		"time that no pass takes":              {beat: beat{rows: 1, time: 1 << 62}, after: 0},
		"half of the time without a processor": {beat: beat{}, waited: tick / 2, after: 9500 * time.Millisecond, doing: "for 5s"},
		"never with a processor":               {beat: beat{}, waited: time.Hour, after: 0},
	} {
		t.Run(name, func(t *testing.T) {
			tc.beat.name = "gopher"
			c := newClock(tc.beat)
			c.waited = tc.waited
			after, doing := c.pass(time.Hour, nil)
			if after != tc.after || !strings.Contains(doing, tc.doing) ||
				after > 0 && !strings.HasPrefix(doing, `"gopher" has finished nothing`) {
				t.Errorf("hangs after %v: %s\nwant after %v: %s", after, doing, tc.after, tc.doing)
			}
		})
	}
}

func TestWatchOfWhoGetsOn(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		c, n := newClock(beat{}), 0
		if after, what := c.pass(time.Hour, func() { // a beat every other tick
			if n++; n%2 == 0 {
				c.beats[0].done++
			}
		}); after != 0 {
			t.Errorf("after %v: %s", after, what)
		}
	})
	t.Run("slow, but on", func(t *testing.T) {
		c, n := newClock(beat{}), 0
		if after, what := c.pass(time.Hour, func() { // passes of 4.5 s
			if n++; n%9 == 0 {
				c.beats[0].done++
			}
		}); after != 0 {
			t.Errorf("after %v: %s", after, what)
		}
	})
	t.Run("no beats", func(t *testing.T) {
		if after, what := newClock().pass(time.Hour, nil); after != 0 {
			t.Errorf("after %v: %s", after, what)
		}
	})
	t.Run("one of two", func(t *testing.T) {
		c := newClock(beat{name: "busy"}, beat{name: "stuck"})
		if after, what := c.pass(time.Hour, func() { c.beats[0].done++ }); after != 5*time.Second || !strings.Contains(what, `"stuck"`) {
			t.Errorf("after %v: %s", after, what)
		}
	})
	t.Run("a suspended box", func(t *testing.T) {
		c := newClock(beat{})
		for range 100 { // an hour each: to the watch it is one late tick
			if after, what := c.pass(tick, nil); after != 0 {
				t.Fatalf("after %v: %s", after, what)
			}
			c.beats[0].done++
		}
	})
}

// TestPulse: the supervisor reads what the child has written, and a child that writes nonsense hurts nobody.
func TestPulse(t *testing.T) {
	p, file, err := newPage(3, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer p.release()
	fd := int(file.Fd())
	child, err := OpenPulse(fd)
	if err != nil {
		t.Fatal(err)
	}
	if all, hung := child.Restarts(); all != 3 || hung != 2 {
		t.Errorf("%d restarts, %d of what hung: want 3 and 2", all, hung)
	}
	long := strings.Repeat("n", 100)
	a, b := child.Beat("a"), child.Beat(long)
	a.Expect(7, time.Second)
	b.Expect(7, time.Second)
	b.Finished()
	a.Goes()
	want := []beat{{"a", 1, 7, time.Second}, {long[:nameBytes], 1, 0, time.Second}}
	if got := p.beats(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("beats %v: want %v", got, want)
	}
	for range maxBeats {
		child.Beat("more").Finished()
	}
	if n := len(p.beats()); n != maxBeats {
		t.Errorf("%d beats: want %d", n, maxBeats)
	}
	if child, err = OpenPulse(fd); err != nil || len(p.beats()) > 0 {
		t.Errorf("opened again: beats %v, %v", p.beats(), err)
	}
	if child.Beat("b"); fmt.Sprint(p.beats()) != fmt.Sprint([]beat{{"b", 0, 0, 0}}) {
		t.Errorf("a beat of a pulse that was opened again: %v", p.beats())
	}
	for i := range child.page {
		child.page[i] = 0xff
	}
	if n := len(p.beats()); n != maxBeats {
		t.Errorf("%d beats of nonsense: want %d", n, maxBeats)
	}
	if err := file.Truncate(0); err == nil {
		t.Error("a child can cut the memory short, which would kill its supervisor")
	}
	file.Close()
	if none, err := OpenPulse(0); none != nil || err != nil {
		t.Errorf("without a supervisor: %v, %v", none, err)
	}
}

// watched starts one child under a supervisor that is soon impatient with one that is ready, and after stall (0: 30 s) with one that
// starts.
func watched(t *testing.T, stall time.Duration, restart bool, script ...string) (*Group, *lines) {
	t.Helper()
	out := &lines{}
	g := New(GroupConfig{Program: os.Args[0], Stderr: out, Grace: 300 * time.Millisecond, Stall: stall, Hang: time.Second})
	t.Cleanup(func() { g.Stop(t.Context()) })
	if err := g.Start(t.Context(), spec("a", restart, script...)); err != nil {
		t.Fatal(err)
	}
	return g, out
}

// TestHungChild: a child that lives, and would answer a probe, but whose work stands still.
func TestHungChild(t *testing.T) {
	t.Parallel()
	g, out := watched(t, 0, true, "lives", "pass=model", "ready", "deaf", "sleep")
	first := g.Pids()["a"]
	testkit.Eventually(t, "its third life", func() bool { return strings.Contains(out.String(), "a: life 3, 2 hung\n") })
	if !gone(first) {
		t.Errorf("process %d lives", first)
	}
	want := `tandem: a hung and was killed ("model" has finished nothing for 1s, in a pass of 4 rows that should take 20ms): starting it again`
	if strings.Count(out.String(), want+"\n") != 2 {
		t.Errorf("stderr %q: want two times %q", out.String(), want)
	}
}

func TestStoppedChild(t *testing.T) {
	t.Parallel()
	g, out := watched(t, 0, true, "lives", "beat", "ready", "sleep")
	time.Sleep(1200 * time.Millisecond)
	if strings.Contains(out.String(), "hung and") {
		t.Fatalf("stderr %q: a child that gets on was killed", out.String())
	}
	if err := syscall.Kill(g.Pids()["a"], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "its second life", func() bool { return strings.Contains(out.String(), "a: life 2, 1 hung\n") })
	if want := "; a signal had stopped it): starting it again"; !strings.Contains(out.String(), want) {
		t.Errorf("stderr %q: want %q", out.String(), want)
	}
}

// TestStopOfAStoppedChild: the end does not wait for a child that cannot hear, whatever the grace.
func TestStopOfAStoppedChild(t *testing.T) {
	t.Parallel()
	g := New(GroupConfig{Program: os.Args[0], Stderr: &lines{}, Grace: time.Minute, Hang: 500 * time.Millisecond})
	if err := g.Start(t.Context(), spec("a", true, "lives", "beat", "ready", "sleep")); err != nil {
		t.Fatal(err)
	}
	pid := g.Pids()["a"]
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	begun := time.Now()
	g.Stop(t.Context())
	if took := time.Since(begun); took > 30*time.Second || !gone(pid) {
		t.Errorf("stopped after %v, process gone: %v", took, gone(pid))
	}
}

func TestHungChildThatIsNotRestarted(t *testing.T) {
	t.Parallel()
	g, _ := watched(t, 0, false, "pass=model", "ready", "sleep")
	if err := <-g.Failed(); !strings.HasPrefix(err.Error(), `a ended: "model" has finished nothing for 1s`) {
		t.Error(err)
	}
}

// TestHungAtItsStart: a child whose next life never becomes ready is given another.
func TestHungAtItsStart(t *testing.T) {
	t.Parallel()
	stuck := filepath.Join(t.TempDir(), "stuck")
	g, out := watched(t, 2*time.Second, true, "lives", "stuck-on="+stuck, "beat", "ready", "sleep")
	if err := os.WriteFile(stuck, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(g.Pids()["a"], syscall.SIGKILL)
	testkit.Eventually(t, "its third life", func() bool { return strings.Contains(out.String(), "a: life 3, 1 hung\n") })
	want := "tandem: a hung and was killed (a is not ready: nothing heard from it for 2s): starting it again"
	if !strings.Contains(out.String(), want) {
		t.Errorf("stderr %q: want %q", out.String(), want)
	}
}

// TestQueued: who could run and may not has waited for a processor; who is gone has not.
func TestQueued(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4 * runtime.NumCPU()))
	q := queued{pid: os.Getpid()}
	if n := q.waited(); n != 0 {
		t.Errorf("%v at the first look: want 0", n)
	}
	var busy sync.WaitGroup
	for range 4 * runtime.NumCPU() {
		busy.Go(func() {
			for begun := time.Now(); time.Since(begun) < 300*time.Millisecond; {
			}
		})
	}
	busy.Wait()
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip("this kernel does not tell: ", err)
	}
	if n := q.waited(); n < 20*time.Millisecond || n > 30*time.Second {
		t.Errorf("four threads on each processor for 300 ms: the longest wait was %v", n)
	}
	if n := (&queued{pid: 1 << 30}).waited(); n != 0 {
		t.Errorf("a process that is not: %v", n)
	}
}

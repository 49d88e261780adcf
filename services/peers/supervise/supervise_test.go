package supervise

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"go.uber.org/goleak"
)

// TestMain lets the test binary play the children: its arguments say how one behaves.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		os.Exit(play(os.Args[2:]))
	}
	testkit.AtOnce(16)
	goleak.VerifyTestMain(m)
}

func play(script []string) int {
	var pulse *Pulse
	for _, step := range script {
		verb, arg, _ := strings.Cut(step, "=")
		switch verb {
		case "ready":
			_ = Ready(ReadyFD)
		case "settled":
			_ = Settled(ReadyFD)
		case "await": // a pipe's other end
			_, _ = os.ReadFile(arg)
		case "say":
			fmt.Fprintln(os.Stderr, arg)
		case "tell":
			_ = Tell(ReadyFD, arg)
		case "sleep":
			time.Sleep(time.Minute)
		case "deaf":
			signal.Ignore(syscall.SIGTERM)
		case "exit":
			n, _ := strconv.Atoi(arg)
			return n
		case "count": // one more byte in a file per life; from the second life on, die
			f, _ := os.OpenFile(arg, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			f.Write([]byte{'x'})
			st, _ := f.Stat()
			f.Close()
			if st.Size() > 1 {
				fmt.Fprintln(os.Stderr, "tandem: no more")
				return 1
			}
		case "lives": // tell how many there were
			pulse, _ = OpenPulse(PulseFD)
			all, hung := pulse.Restarts()
			fmt.Fprintf(os.Stderr, "life %d, %d hung\n", all+1, hung)
		case "pass": // in a pass that never ends
			if pulse == nil {
				pulse, _ = OpenPulse(PulseFD)
			}
			pulse.Beat(arg).Expect(4, 20*time.Millisecond)
		case "beat":
			go func(b *Beat) {
				for {
					b.Finished()
					time.Sleep(100 * time.Millisecond)
				}
			}(pulse.Beat("often"))
		case "remove": // a file that is in the way
			if os.Remove(arg) == nil {
				fmt.Fprintln(os.Stderr, "tandem: it was damaged")
				return TryAgain
			}
		case "touch":
			if os.WriteFile(arg, nil, 0o600) != nil {
				return 1
			}
		case "stuck-on": // a file: take it away and hang
			if os.Remove(arg) == nil {
				time.Sleep(time.Minute)
			}
		case "parent": // start a sleeping child of one's own, tell its pid, and wait to be killed
			g := New(GroupConfig{Program: os.Args[0], Stderr: os.Stderr})
			if err := g.Start(context.Background(), Spec{Name: "grandchild", Args: []string{"child", "ready", "sleep"}}); err != nil {
				return 1
			}
			fmt.Println(g.Pids()["grandchild"])
			time.Sleep(time.Minute)
		}
	}
	return 0
}

type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func group(t *testing.T) (*Group, *lines) {
	t.Helper()
	out := &lines{}
	return New(GroupConfig{Program: os.Args[0], Stderr: out, Grace: 300 * time.Millisecond}), out
}

func spec(name string, restart bool, script ...string) Spec {
	return Spec{Name: name, Restart: restart, Args: append([]string{"child"}, script...)}
}

func gone(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	g, out := group(t)
	if err := g.Start(t.Context(), spec("a", false, "say=hello", "ready", "sleep"), spec("b", true, "deaf", "ready", "sleep")); err != nil {
		t.Fatal(err)
	}
	pids := g.Pids()
	if len(pids) != 2 {
		t.Fatalf("pids %v: want two", pids)
	}
	testkit.Eventually(t, "the child's line", func() bool { return strings.Contains(out.String(), "a: hello\n") })
	g.Stop(t.Context())
	for name, pid := range pids {
		if !gone(pid) {
			t.Errorf("%s (%d) lives after Stop", name, pid)
		}
	}
}

func TestChildThatDiesAtItsStart(t *testing.T) {
	t.Parallel()
	g, out := group(t)
	defer g.Stop(t.Context())
	err := g.Start(t.Context(), spec("a", false, "ready", "sleep"), spec("b", true, "say=warming up", "say=tandem: no such file", "exit=1"))
	if err == nil || err.Error() != "no such file" {
		t.Fatalf("error %v: want the child's own words", err)
	}
	if got := out.String(); got != "b: warming up\n" {
		t.Errorf("stderr %q: want only the line that is not the error", got)
	}
}

// TestLineBeforeReady: what a child says before it is ready is passed on once it is, also if it looked like an error.
func TestLineBeforeReady(t *testing.T) {
	t.Parallel()
	g, out := group(t)
	defer g.Stop(t.Context())
	if err := g.Start(t.Context(), spec("a", false, "say=tandem: computes on cuda:0", "ready", "sleep")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the child's line", func() bool { return out.String() == "a: tandem: computes on cuda:0\n" })
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	g, _ := group(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := g.Start(ctx, spec("a", false, "sleep")); err != context.DeadlineExceeded {
		t.Errorf("error %v: want the context's", err)
	}
	g.Stop(t.Context())
}

func TestSilentChild(t *testing.T) {
	t.Parallel()
	g := New(GroupConfig{Program: os.Args[0], Stderr: &lines{}, Stall: 50 * time.Millisecond})
	defer g.Stop(t.Context())
	err := g.Start(t.Context(), spec("a", false, "sleep"))
	if err == nil || !strings.Contains(err.Error(), "a is not ready: nothing heard from it for 50ms") {
		t.Errorf("error %v", err)
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	g, out := group(t)
	defer g.Stop(t.Context())
	if err := g.Start(t.Context(), spec("a", true, "ready", "sleep")); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		pid := g.Pids()["a"]
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "another process", func() bool { now := g.Pids()["a"]; return now != 0 && now != pid })
	}
	if !strings.Contains(out.String(), "tandem: a died (signal: killed): starting it again\n") {
		t.Errorf("stderr %q: the death is not told", out.String())
	}
}

func TestDeathWithoutRestartAndGivingUp(t *testing.T) {
	t.Run("no restart", func(t *testing.T) {
		t.Parallel()
		g, _ := group(t)
		defer g.Stop(t.Context())
		if err := g.Start(t.Context(), spec("a", false, "ready", "exit=7")); err != nil {
			t.Fatal(err) // also if it was dead before anybody read that it was ready
		}
		if err := <-g.Failed(); err.Error() != "a ended: exit status 7" {
			t.Error(err)
		}
	})
	t.Run("given up", func(t *testing.T) {
		t.Parallel()
		out := &lines{}
		g := New(GroupConfig{Program: os.Args[0], Stderr: out, Grace: 300 * time.Millisecond, GiveUp: time.Second})
		defer g.Stop(t.Context())
		count := filepath.Join(t.TempDir(), "lives")
		if err := g.Start(t.Context(), spec("a", true, "count="+count, "ready", "exit=7")); err != nil {
			t.Fatal(err)
		}
		if err := <-g.Failed(); err.Error() != "a could not be started again for 1s: no more" {
			t.Error(err)
		}
		if b, _ := os.ReadFile(count); len(b) < 4 || len(b) > 8 {
			t.Errorf("%d lives in a second: want a few, with growing pauses", len(b))
		}
		if n := strings.Count(out.String(), "a cannot be started again (no more)"); n != 1 {
			t.Errorf("told %d times that it cannot be started: want once\n%s", n, out.String())
		}
	})
	t.Run("spare", func(t *testing.T) {
		t.Parallel()
		out := &lines{}
		g := New(GroupConfig{Program: os.Args[0], Stderr: out, Grace: 300 * time.Millisecond, GiveUp: time.Millisecond})
		defer g.Stop(t.Context())
		count := filepath.Join(t.TempDir(), "lives")
		spare := spec("a", true, "count="+count, "ready", "exit=7")
		spare.Spare = true
		if err := g.Start(t.Context(), spare, spec("b", true, "ready", "sleep")); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "it is started again and again", func() bool { b, _ := os.ReadFile(count); return len(b) >= 5 })
		if err := os.Remove(count); err != nil { // now it can live
			t.Fatal(err)
		}
		testkit.Eventually(t, "it runs again", func() bool { return strings.Contains(out.String(), "tandem: a runs again\n") })
		select {
		case err := <-g.Failed():
			t.Errorf("the others end: %v", err)
		default:
		}
	})
}

// TestFirstStartAgain: a child that has removed what was in its way at its first start is started once more, one that refuses is not.
func TestFirstStartAgain(t *testing.T) {
	t.Parallel()
	g, out := group(t)
	defer g.Stop(t.Context())
	damaged := filepath.Join(t.TempDir(), "damaged")
	if err := os.WriteFile(damaged, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.Start(t.Context(), spec("a", true, "remove="+damaged, "ready", "sleep")); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "tandem: a died (it was damaged): starting it again") {
		t.Errorf("told %q", out.String())
	}
}

// TestRestoredRunDir: a child that dies after somebody has removed the run directory finds another.
func TestRestoredRunDir(t *testing.T) {
	t.Parallel()
	d, err := NewRunDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if restored, err := d.Restore(); restored || err != nil {
		t.Errorf("a directory that is there: restored %v, %v", restored, err)
	}
	restore := func() error {
		_, err := d.Restore()
		return err
	}
	g := New(GroupConfig{Program: os.Args[0], Stderr: &lines{}, Grace: 300 * time.Millisecond, Before: restore})
	defer g.Stop(t.Context())
	if err := g.Start(t.Context(), spec("a", true, "touch="+d.File("socket"), "ready", "sleep")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(d.Path); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(g.Pids()["a"], syscall.SIGKILL)
	testkit.Eventually(t, "the child's file", func() bool { _, err := os.Stat(d.File("socket")); return err == nil })
	if st, err := os.Stat(d.Path); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v: want mode 0700", st, err)
	}
	if other, err := NewRunDir(filepath.Dir(d.Path)); err != nil { // which removes those of dead owners
		t.Error(err)
	} else if err := other.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(d.Path); err != nil {
		t.Errorf("the restored directory is taken for a dead owner's: %v", err)
	}
}

func TestForce(t *testing.T) {
	t.Parallel()
	g := New(GroupConfig{Program: os.Args[0], Stderr: &lines{}, Grace: time.Minute})
	if err := g.Start(t.Context(), spec("a", false, "deaf", "ready", "sleep")); err != nil {
		t.Fatal(err)
	}
	force, now := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer now()
	start := time.Now()
	g.Stop(force)
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("a forced stop took %v", took)
	}
}

// TestChildrenEndWithTheirParent kills a process that has a child, and sees the child end.
func TestChildrenEndWithTheirParent(t *testing.T) {
	t.Parallel()
	parent := exec.Command(os.Args[0], "child", "parent")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	if gone(pid) {
		t.Fatal("the grandchild is dead already")
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	testkit.Eventually(t, "end of the grandchild", func() bool { return gone(pid) || zombie(pid) })
}

// zombie reports whether pid has ended and only waits to be reaped, by whoever adopted it.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && strings.HasPrefix(rest, "Z")
}

func TestRunDir(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	d, err := NewRunDir(base)
	if err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(d.Path); st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v: want 0700", st.Mode().Perm())
	}
	// As a process that was killed leaves it: the lock is gone, the directory not.
	dead, err := NewRunDir(base)
	if err != nil {
		t.Fatal(err)
	}
	dead.lock.Close()
	other, err := NewRunDir(base)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead.Path); !os.IsNotExist(err) {
		t.Error("a dead owner's directory is still there")
	}
	if _, err := os.Stat(d.Path); err != nil {
		t.Error("a living owner's directory is gone")
	}
	for _, d := range []*RunDir{d, other} {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if left, _ := os.ReadDir(base); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestRunDirOfKilledMakers: directories whose makers were killed before the lock was written, or while they removed it, go with the next
// start; what only looks like one stays.
func TestRunDirOfKilledMakers(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	for _, name := range []string{"tandem-1", "tandem-22", "tandem-mine"} {
		if err := os.Mkdir(filepath.Join(base, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, size := range map[string]int{"tandem-22/lock": 0, "tandem-mine/lock": 0} {
		if err := os.WriteFile(filepath.Join(base, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, err := NewRunDir(base)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(base); err != nil || len(left) != 1 || left[0].Name() != "tandem-mine" {
		t.Errorf("left behind: %v, %v: want tandem-mine alone", left, err)
	}
}

// TestRunDirsAtOnce: owners that start at once sweep each other's directories at their making, and each gets one for itself.
func TestRunDirsAtOnce(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				d, err := NewRunDir(base)
				if err != nil {
					t.Error(err)
					return
				}
				if st, err := os.Stat(d.File(lockName)); err != nil || st.Size() != lockBytes {
					t.Errorf("a directory in use has a lock file %v, %v: want %d bytes", st, err, lockBytes)
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if left, _ := os.ReadDir(base); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestRunDirThatCannotBe(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "no")
	if _, err := NewRunDir(missing); err == nil || !strings.Contains(err.Error(), missing+": no such file or directory") {
		t.Errorf("missing directory: %v", err)
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := NewRunDir(long); err == nil || !strings.Contains(err.Error(), "unix socket") {
		t.Errorf("path too long for a socket: %v", err)
	}
	if left, _ := os.ReadDir(long); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

package test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem/client"
)

// hangs is a request that is long enough for something to happen while it runs.
func hangs() client.Request {
	n, seed, temperature := 300, uint64(7), 0.8
	return client.Request{Prompt: "func (r *Reader) Read(", MaxTokens: &n, Seed: &seed, Temperature: &temperature, IgnoreEOS: true}
}

// during runs r and calls at once it has some output.
func (g *group) during(t testing.TB, r client.Request, at func()) (tokens []uint32, err error) {
	t.Helper()
	for event, err := range g.client.Generate(t.Context(), r) {
		if err != nil {
			return tokens, err
		}
		if event.Delta == nil {
			continue
		}
		if tokens = append(tokens, event.Delta.Tokens...); at != nil && len(tokens) > 4 {
			at()
			at = nil
		}
	}
	if at != nil {
		t.Error("the request was over before anything could happen")
	}
	return tokens, nil
}

// signal sends a signal to all processes of a role.
func (w *world) signal(sig syscall.Signal, roles ...string) {
	for _, role := range roles {
		for _, pid := range w.role(role) {
			_ = syscall.Kill(pid, sig)
		}
	}
}

// killed returns what /metrics says of processes that hung.
func (g *webGroup) killed(t testing.TB, role string) float64 {
	return scrape(t, strings.TrimPrefix(g.url, "http://")).sum("tandem_watchdog_kills_total", "process="+role)
}

// atOnce runs tests that mostly wait at the same time, more of them than t.Parallel would.
func atOnce(t *testing.T, tests map[string]func(*testing.T)) {
	var all sync.WaitGroup
	for name, test := range tests {
		all.Go(func() { t.Run(name, test) })
	}
	all.Wait()
}

// TestStoppedProcesses stops processes with SIGSTOP. Under `up` one that does not go on is killed within a few seconds, and
// started again; what runs ends with the same text, unless its gateway was it. Everything together may stop for a while, and so may
// processes that nobody supervises: then nothing happens.
func TestStoppedProcesses(t *testing.T) {
	mayBeSlow(t)
	tests := map[string]func(*testing.T){
		"verifier and drafter of up": stopPeers, "gateway of up": stopGateway, "idle verifier of up": stopIdle, "all of up": stopAll,
		"verifier by hand": stopByHand("verifier"), "gateway by hand": stopByHand("gateway"), "drafter by hand": stopByHand("drafter"),
	}
	atOnce(t, tests)
}

func stopPeers(t *testing.T) {
	g := upWeb(t, "")
	want := g.run(t, hangs()).tokens
	verifier, drafter := g.w.one(t, "verifier"), g.w.one(t, "drafter")
	var stopped time.Time
	got, err := g.during(t, hangs(), func() {
		g.w.signal(syscall.SIGSTOP, "verifier", "drafter")
		stopped = time.Now()
	})
	took := time.Since(stopped)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v after %v, tokens\n%v, undisturbed\n%v", err, took, got, want)
	}
	if took < 4*time.Second || took > 30*time.Second {
		t.Errorf("the request went on after %v: want about 6 s, and the time that a verifier takes to load", took)
	}
	g.back(t, "verifier", verifier)
	g.back(t, "drafter", drafter)
	testkit.Eventually(t, "both kills at /metrics", func() bool { return g.killed(t, "verifier") == 1 && g.killed(t, "drafter") == 1 })
	if n := g.killed(t, "gateway"); n != 0 {
		t.Errorf("%v kills of the gateway: want none", n)
	}
	if e := g.w.ok("ps", "--addr", "unix://"+g.w.tmp+"/g.sock"); !strings.Contains(e.stdout, "RESTARTS") {
		t.Errorf("ps printed %q", e.stdout)
	}
	t.Logf("the request went on after %v", took)
}

func stopGateway(t *testing.T) {
	g := upWeb(t, "")
	want := g.run(t, hangs()).tokens
	old := g.w.one(t, "gateway")
	_, err := g.during(t, hangs(), func() { g.w.signal(syscall.SIGSTOP, "gateway") })
	if !errors.Is(err, client.Unavailable) {
		t.Errorf("the request of a gateway that hung ended with %v: want unavailable", err)
	}
	testkit.Eventually(t, "the next gateway where the last one was", func() bool {
		r, err := http.Get(g.url + "/readyz")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	if got := g.run(t, hangs()).tokens; !slices.Equal(got, want) {
		t.Errorf("tokens from the next gateway\n%v, from the last\n%v", got, want)
	}
	if n := g.killed(t, "gateway"); n != 1 || slices.Contains(g.w.role("gateway"), old) {
		t.Errorf("%v kills of the gateway, ids %v after %d: want 1 and another", n, g.w.role("gateway"), old)
	}
}

func stopIdle(t *testing.T) {
	g := upWeb(t, "", "--no-draft")
	want := g.run(t, hangs()).tokens
	old := g.w.one(t, "verifier")
	g.w.signal(syscall.SIGSTOP, "verifier")
	begun := time.Now()
	if got := g.run(t, hangs()).tokens; !slices.Equal(got, want) {
		t.Errorf("tokens\n%v, undisturbed\n%v", got, want)
	}
	t.Logf("a request to a verifier that had stopped before took %v", time.Since(begun))
	g.back(t, "verifier", old)
}

func stopAll(t *testing.T) {
	g := upWeb(t, "")
	want := g.run(t, hangs()).tokens
	children := []string{"gateway", "verifier", "drafter"}
	var before []int
	for _, role := range children {
		before = append(before, g.w.one(t, role))
	}
	got, err := g.during(t, hangs(), func() { // as a machine that is suspended
		_ = g.cmd.Process.Signal(syscall.SIGSTOP)
		g.w.signal(syscall.SIGSTOP, children...)
		time.Sleep(10 * time.Second)
		g.w.signal(syscall.SIGCONT, children...)
		_ = g.cmd.Process.Signal(syscall.SIGCONT)
	})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, tokens\n%v, undisturbed\n%v", err, got, want)
	}
	time.Sleep(time.Second)
	for i, role := range children {
		if now := g.w.one(t, role); now != before[i] {
			t.Errorf("%s is process %d, was %d: a suspended machine was taken for a process that hangs", role, now, before[i])
		}
	}
}

// stopByHand returns a test in which nobody supervises the role's process, which stops for 10 s.
func stopByHand(role string) func(t *testing.T) {
	return func(t *testing.T) {
		c := newCluster(t, clusterConfig{})
		want := c.run(t, hangs()).tokens
		before := fmt.Sprint(c.w.processes())
		var on sync.WaitGroup
		got, err := c.during(t, hangs(), func() {
			c.w.signal(syscall.SIGSTOP, role)
			on.Go(func() {
				time.Sleep(10 * time.Second)
				c.w.signal(syscall.SIGCONT, role)
			})
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, tokens\n%v, undisturbed\n%v", err, got, want)
		}
		on.Wait()
		if got := c.run(t, hangs()).tokens; !slices.Equal(got, want) {
			t.Errorf("the next request: tokens\n%v, undisturbed\n%v", got, want)
		}
		if after := fmt.Sprint(c.w.processes()); after != before {
			t.Errorf("processes %s, before %s", after, before)
		}
	}
}

// upAnywhere starts `tandem up` on ports that the system chooses, and returns the gateway's address.
func (w *world) upAnywhere(t *testing.T) (string, *exec.Cmd) {
	t.Helper()
	cmd := w.command(t.Context(), "up", "--json", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--grace", "1s", "--no-draft")
	stderr := new(lockedBuffer)
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	var started struct{ Gateway string }
	if err != nil || json.Unmarshal([]byte(line), &started) != nil {
		t.Fatalf("up printed %q, %v: %s", line, err, stderr)
	}
	return started.Gateway, cmd
}

// TestGatewayOfUp kills the gateway of `up` on ports that the system chose: the next one is where it was, and `up` goes on.
func TestGatewayOfUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	addr, cmd := w.upAnywhere(t)
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("up ended with %v", err)
		}
	}()
	if strings.HasSuffix(addr, ":0") {
		t.Fatalf("up printed the address %s: want the port that was chosen", addr)
	}
	want := w.generate("--addr", addr, "--prompt", "import os", "--max-tokens", "16").Tokens
	for range 2 {
		old := w.one(t, "gateway")
		if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "another gateway at "+addr, func() bool {
			return w.run("health", "--addr", addr).code == 0 && !slices.Contains(w.role("gateway"), old)
		})
		if got := w.generate("--addr", addr, "--prompt", "import os", "--max-tokens", "16").Tokens; !slices.Equal(got, want) {
			t.Errorf("tokens %v, from the first gateway %v", got, want)
		}
	}
	if entries, _ := os.ReadDir(w.tmp); len(entries) != 1 {
		t.Errorf("%d entries in the temporary directory: want the run directory alone", len(entries))
	}
}

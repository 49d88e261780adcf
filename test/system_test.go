package test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem/client"
)

// group is a running `tandem up`.
type group struct {
	w      *world
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr *strings.Builder
	client *client.Client
	http   string // URL of its HTTP server; "" for none
}

// up starts `tandem up` in a world of its own and stops it at the end of the test.
func up(t testing.TB, flags ...string) *group {
	t.Helper()
	g := newWorld(t).begin(nil, flags...)
	t.Cleanup(func() { g.stop(t) })
	g.ready(t)
	return g
}

// begin starts `tandem up` with more variables in its environment, and does not wait for it.
func (w *world) begin(env []string, flags ...string) *group {
	w.t.Helper()
	g := &group{w: w, stderr: &strings.Builder{}}
	g.cmd = w.command(context.Background(), append([]string{"up", "--json", "--listen", g.socket(), "--http", "off", "--grace", "1s"},
		flags...)...)
	g.cmd.Env = append(g.cmd.Env, env...)
	g.cmd.Stderr = g.stderr
	stdout, err := g.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	g.stdout = bufio.NewReader(stdout)
	if err := g.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	return g
}

// socket is the gateway's address.
func (g *group) socket() string { return "unix://" + filepath.Join(g.w.tmp, "g.sock") }

// ready waits until all processes serve, and connects.
func (g *group) ready(t testing.TB) {
	t.Helper()
	line, err := g.stdout.ReadString('\n')
	var started struct{ Gateway, HTTP string }
	if err != nil || json.Unmarshal([]byte(line), &started) != nil || started.Gateway != g.socket() {
		t.Fatalf("up printed %q, %v: %s", line, err, g.stderr)
	}
	g.http = started.HTTP
	if g.client, err = client.Dial(g.socket(), client.WithResume(0)); err != nil { // tests see what breaks off
		t.Fatal(err)
	}
}

func (g *group) stop(t testing.TB) {
	if g.client != nil {
		_ = g.client.Close()
	}
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	_ = g.cmd.Wait()
	if code := g.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("up ended with code %d after SIGTERM", code)
	}
	if t.Failed() {
		t.Logf("stderr of up:\n%s", g.stderr)
	}
}

// result is one generation.
type result struct {
	text     string
	tokens   []uint32
	finished client.Finished
}

// run runs one request to its end.
func (g *group) run(t testing.TB, r client.Request) result {
	t.Helper()
	out, err := g.try(t.Context(), r)
	if err != nil {
		t.Fatalf("request %+v: %v", r.Prompt, err)
	}
	return out
}

func (g *group) try(ctx context.Context, r client.Request) (out result, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for event, err := range g.client.Generate(ctx, r) {
		switch {
		case err != nil:
			return out, err
		case event.Delta != nil:
			out.tokens = append(out.tokens, event.Delta.Tokens...)
			out.text += event.Delta.Text
		case event.Finished != nil:
			out.finished = *event.Finished
		}
	}
	if s := out.finished.Statistics; s.Accepted+s.Rounds != len(out.tokens) {
		return out, fmt.Errorf("%d accepted and %d rounds, but %d tokens", s.Accepted, s.Rounds, len(out.tokens))
	}
	return out, nil
}

// setting is a way to sample.
type setting struct {
	temperature float64
	seed        uint64
}

func (s setting) request(prompt string, tokens int) client.Request {
	topK, topP := 0, 1.0
	if s.temperature > 0 {
		topK, topP = 100, 0.95
	}
	return client.Request{Prompt: prompt, MaxTokens: &tokens, Temperature: &s.temperature, Seed: &s.seed, TopK: &topK, TopP: &topP}
}

func (s setting) String() string { return fmt.Sprintf("temperature %v seed %d", s.temperature, s.seed) }

var trees = []client.Tree{{Nodes: 16, Depth: 7, Width: 10}, {Nodes: 8, Depth: 4, Width: 4}, {Nodes: 5, Depth: 4, Width: 1}}

// plain returns r without speculation.
func plain(r client.Request) client.Request {
	r.NoDraft, r.Tree = true, nil
	return r
}

func withTree(r client.Request, tree client.Tree) client.Request {
	r.Strategy, r.Tree = "fixed", &tree
	return r
}

// sample returns a few prompts of every domain.
func sample(t testing.TB, each int) []prompt {
	t.Helper()
	n := map[string]int{}
	return slices.DeleteFunc(prompts(t), func(p prompt) bool { n[p.Domain]++; return n[p.Domain] > each })
}

// TestSameText compares speculative with plain decoding; the long form is TestLongSameText.
func TestSameText(t *testing.T) {
	t.Parallel()
	g := up(t)
	drafted := 0
	for _, p := range sample(t, 1) {
		for _, s := range []setting{{0, 0}, {0.8, 1}} {
			r := s.request(p.Prompt, 48)
			want := g.run(t, plain(r))
			if want.finished.Statistics.Drafted != 0 {
				t.Errorf("%s: plain decoding drafted", p.ID)
			}
			for _, tree := range trees {
				got := g.run(t, withTree(r, tree))
				if !slices.Equal(got.tokens, want.tokens) || got.text != want.text {
					t.Errorf("%s, %v, tree %v: tokens\n%v, without speculation\n%v", p.ID, s, tree, got.tokens, want.tokens)
				}
				drafted += got.finished.Statistics.Accepted
			}
		}
	}
	if drafted == 0 {
		t.Error("nothing that was drafted was accepted: did speculation run at all?")
	}
}

// TestSameTextAcrossProcesses does the same through `generate`, with processes of its own each time,
// another draft model, instruction sets, and trees that all travel through shared memory.
func TestSameTextAcrossProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := prompts(t)[2]
	base := []string{"--prompt", p.Prompt, "--max-tokens", "32", "--temperature", "0.8", "--top-k", "100", "--seed", "7"}
	want := w.generate(append(base, "--no-draft")...)
	for _, flags := range [][]string{
		{},
		{"--inline-limit", "0"},
		{"--draft", "../models/gopher-draft-py-f16.gguf", "--verifier-threads", "2"},
		{"--isa", "generic", "--tree", "8/4/4"},
		{"--isa", "avx2"},
	} {
		if len(flags) > 0 && flags[0] == "--isa" && !hasISA(t, w, flags[1]) {
			t.Logf("this machine has no %s", flags[1])
			continue
		}
		got := w.generate(append(append(base, "--strategy", "fixed"), flags...)...) // the planner might draft nothing
		if !slices.Equal(got.Tokens, want.Tokens) || got.Text != want.Text {
			t.Errorf("%v: tokens\n%v, plain\n%v", flags, got.Tokens, want.Tokens)
		}
		if got.Stats.Drafted == 0 {
			t.Errorf("%v: nothing was drafted", flags)
		}
	}
}

func hasISA(t testing.TB, w *world, isa string) bool {
	t.Helper()
	var info struct {
		Kernels struct {
			Available []string `json:"available"`
		} `json:"kernels"`
	}
	if err := json.Unmarshal([]byte(w.ok("model", "info", targetModel, "--json").stdout), &info); err != nil {
		t.Fatal(err)
	}
	return slices.Contains(info.Kernels.Available, isa)
}

// TestEightAtOnce runs eight requests at the same time, each of which must say what it says alone.
func TestEightAtOnce(t *testing.T) {
	t.Parallel()
	g := up(t)
	var want [8]result
	requests := make([]client.Request, 8)
	for i, p := range sample(t, 3)[:8] {
		s := setting{0.8 * float64(i%2), uint64(i)}
		requests[i] = withTree(s.request(p.Prompt, 40), trees[i%len(trees)])
		want[i] = g.run(t, plain(requests[i]))
	}
	var wg sync.WaitGroup
	for i, r := range requests {
		wg.Go(func() {
			got, err := g.try(t.Context(), r)
			if err != nil || !slices.Equal(got.tokens, want[i].tokens) {
				t.Errorf("request %d: %v: tokens\n%v, alone\n%v", i, err, got.tokens, want[i].tokens)
			}
		})
	}
	wg.Wait()
}

// TestKilledProcesses kills drafter and verifier at random moments of requests, whose text must not
// change.
func TestKilledProcesses(t *testing.T) {
	t.Parallel()
	g := up(t)
	p := prompts(t)[0]
	r := withTree(setting{0.8, 3}.request(p.Prompt, 300), trees[0])
	r.IgnoreEOS = true
	want := g.run(t, plain(r))
	kills := 3
	if *long {
		kills = 40
	}
	for _, role := range []string{"drafter", "verifier"} {
		t.Run(role, func(t *testing.T) {
			reopened := 0
			for range kills {
				testkit.Eventually(t, role+" to be alive", func() bool { return len(g.w.role(role)) == 1 })
				victim := g.w.role(role)[0]
				timer := time.AfterFunc(rand.N(400*time.Millisecond), func() { _ = syscall.Kill(victim, syscall.SIGKILL) })
				got, err := g.try(t.Context(), r)
				timer.Stop()
				if err != nil || !slices.Equal(got.tokens, want.tokens) {
					t.Fatalf("%v: tokens\n%v, undisturbed\n%v", err, got.tokens, want.tokens)
				}
				reopened += got.finished.Statistics.Reopened
				_ = syscall.Kill(victim, syscall.SIGKILL) // in case the request was faster
				testkit.Eventually(t, "another "+role, func() bool { p := g.w.role(role); return len(p) == 1 && p[0] != victim })
			}
			t.Logf("%d kills, sessions opened again %d times", kills, reopened)
		})
	}
	// With all processes alive again, speculation is back.
	testkit.Eventually(t, "drafts after the restarts", func() bool { return g.run(t, r).finished.Statistics.Drafted > 0 })
}

// TestTwoGenerates runs two `generate` at the same time.
func TestTwoGenerates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := prompts(t)[1]
	args := []string{"--prompt", p.Prompt, "--max-tokens", "32"}
	want := w.generate(append(args, "--no-draft")...)
	var wg sync.WaitGroup
	var ends [2]ended
	for i := range ends {
		wg.Go(func() { ends[i] = w.run(append([]string{"generate", "--json"}, args...)...) })
	}
	wg.Wait()
	for _, e := range ends {
		if e.code != 0 {
			t.Fatalf("exit code %d: %s", e.code, e.stderr)
		}
		if got := w.decode(e.stdout); !slices.Equal(got.Tokens, want.Tokens) {
			t.Errorf("tokens\n%v, alone\n%v", got.Tokens, want.Tokens)
		}
	}
}

// TestInterrupt stops `generate` at random moments; the world's cleanup sees that nothing is left.
func TestInterrupt(t *testing.T) {
	times := 8
	if *long {
		times = 200
	}
	for i := range times {
		sig := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}[i%3]
		t.Run(fmt.Sprintf("%d %v", i, sig), func(t *testing.T) {
			w := newWorld(t)
			cmd := w.command(t.Context(), "generate", "--prompt", "package main", "--max-tokens", "1000", "--ignore-eos")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			wait := rand.N(1200 * time.Millisecond)
			time.Sleep(wait)
			start := time.Now()
			if err := cmd.Process.Signal(sig); err != nil {
				t.Logf("ended before the signal, after %v: %v", wait, err)
			}
			_ = cmd.Wait()
			st := cmd.ProcessState.Sys().(syscall.WaitStatus)
			died := st.Signaled() && st.Signal() == sig // before the program could handle it: nothing was started yet
			if code := st.ExitStatus(); !died && code != 128+int(sig) && code != 0 {
				t.Errorf("after %v: exit code %d: want %d", wait, code, 128+int(sig))
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("after %v: ended %v after the signal", wait, took)
			}
		})
	}
}

// TestClosedPipe closes stdout early, as `generate | head -c 1` does.
func TestClosedPipe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cmd := w.command(t.Context(), "generate", "--prompt", "package main", "--max-tokens", "900", "--ignore-eos")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	out.Close()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d after its reader went away: want 1", code)
	}
}

// TestQuickCommands holds the promise about commands that load no model, and the first token. The bounds are of processor time, which other
// work of the machine does not lengthen much; of the clock's they are far away.
func TestQuickCommands(t *testing.T) {
	w := newWorld(t)
	for _, args := range [][]string{{"version"}, {"--help"}} {
		best := time.Hour
		for range 5 {
			cmd := w.command(t.Context(), args...)
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
			best = min(best, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
		}
		t.Logf("%v: %v", args, best)
		if best > 50*time.Millisecond {
			t.Errorf("tandem %v takes %v: want less than 50 ms", args, best)
		}
	}
	best, soonest := time.Hour, time.Hour
	for range 3 {
		cmd := w.command(t.Context(), "generate", "--prompt", "package main", "--max-tokens", "8")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		soonest = min(soonest, time.Since(start))
		_ = cmd.Wait()
		best = min(best, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	}
	t.Logf("first token of generate: %v; processor time until its end: %v", soonest, best)
	if best > 4*time.Second || soonest > 20*time.Second { // two cores for two seconds
		t.Errorf("first token of generate after %v, %v of processor time: want less than 2 s", soonest, best)
	}
}

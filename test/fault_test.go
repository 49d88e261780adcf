package test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tandem-llm/tandem/client"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the faults; 0 = another each time")

// newRandom returns a source of random faults. A test that fails says how to have the same ones again.
func newRandom(t testing.TB) *rand.Rand {
	t.Helper()
	seed := cmp.Or(*seedFlag, rand.Uint64())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("faults with -seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 1))
}

// between returns a random duration from lo to hi.
func between(r *rand.Rand, lo, hi time.Duration) time.Duration {
	return lo + time.Duration(r.Int64N(int64(hi-lo)+1))
}

// natsAddress is the environment variable that makes the test's own program a NATS server, so that
// the server is a process that can be killed.
const natsAddress = "TANDEM_TEST_NATS"

// serveNATS serves until it is killed.
func serveNATS(addr string) int {
	host, port, err := net.SplitHostPort(addr)
	n, errPort := strconv.Atoi(port)
	if err != nil || errPort != nil {
		fmt.Fprintln(os.Stderr, "nats: ", err, errPort)
		return 1
	}
	s, err := server.NewServer(&server.Options{Host: host, Port: n, NoLog: true, NoSigs: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, "nats: ", err)
		return 1
	}
	s.Start()
	s.WaitForShutdown()
	return 0
}

// process is one process of a cluster.
type process struct {
	t      testing.TB
	name   string
	make   func(ctx context.Context) *exec.Cmd
	cmd    *exec.Cmd
	stderr *lockedBuffer
	ended  chan struct{}
}

// lockedBuffer is a bytes.Buffer for a writer and a reader at the same time.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// begin starts the process without waiting for it to be ready, which closes the returned channel.
func (p *process) begin() <-chan struct{} {
	p.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd, p.stderr, p.ended = p.make(context.Background()), new(lockedBuffer), make(chan struct{})
	p.cmd.Stderr, p.cmd.ExtraFiles = p.stderr, []*os.File{w}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	w.Close()
	cmd, ended, ready := p.cmd, p.ended, make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	go func() {
		defer r.Close()
		for lines := bufio.NewScanner(r); lines.Scan(); {
			if lines.Text() == "ready" {
				close(ready)
				return
			}
		}
	}()
	return ready
}

// start starts the process and waits until it serves.
func (p *process) start() { p.t.Helper(); p.await(p.begin()) }

func (p *process) await(ready <-chan struct{}) {
	p.t.Helper()
	select {
	case <-ready:
	case <-p.ended:
		p.t.Fatalf("%s ended before it was ready: %s", p.name, p.stderr)
	case <-time.After(30 * time.Second):
		p.t.Fatalf("%s is not ready after 30 s: %s", p.name, p.stderr)
	}
}

// kill ends the process as kill -9 does and waits for its end.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// stop asks the process to end; one that does not has failed the test.
func (p *process) stop() {
	p.t.Helper()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		p.t.Errorf("%s did not end within 10 s of SIGTERM: %s", p.name, p.stderr)
		p.kill()
	}
}

// goroutines ends the process with a dump of its goroutines' stacks, and returns one text each.
func (p *process) goroutines() []string {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		p.t.Fatalf("%s did not end within 10 s of SIGQUIT", p.name)
	}
	_, dump, ok := strings.Cut(p.stderr.String(), "SIGQUIT: quit")
	if !ok {
		p.t.Fatalf("%s left no dump: %s", p.name, p.stderr)
	}
	var stacks []string
	for part := range strings.SplitSeq(dump, "\n\n") {
		if strings.HasPrefix(part, "goroutine ") && !strings.HasPrefix(part, "goroutine 0 ") {
			stacks = append(stacks, part)
		}
	}
	p.stderr, p.cmd = new(lockedBuffer), nil
	return stacks
}

// cluster is a tandem whose processes the test starts itself, one by one, around a NATS server of the
// test's own, so that each of them can be killed, stopped, replaced or have something put before it.
type cluster struct {
	group                              // how to send requests; its cmd is the gateway's
	dir                                string
	sessions                           int
	nats                               *process
	natsURL                            string
	gateway, verifier                  *process
	drafters                           []*process
	gatewayAddr, verifierAddr, drafter string // addresses; drafter is "" for none
	pool                               string // what the processes are told of it
	programs                           map[string]string
}

// clusterConfig says what is in a cluster.
type clusterConfig struct {
	sessions      int
	target, draft string                       // models; "" for the shipped ones; draft "lookup": none
	drafter       string                       // address of a drafter of the test's own, in place of tandem's
	pool          func(nats string) string     // what the processes are told in place of the server's address
	gatewayFlags  []string                     //
	verifierFlags []string                     //
	drafterFlags  []string                     //
	tcp           bool                         // drafter and verifier listen on ports of 127.0.0.1, not on sockets
	before        func(verifier string) string // puts something before the verifier and returns its address
	programs      map[string]string            // by role, in place of the program under test
}

// newCluster starts a cluster and stops it at the end of the test.
func newCluster(t testing.TB, cfg clusterConfig) *cluster {
	t.Helper()
	w := newWorld(t)
	c := &cluster{group: group{w: w}, dir: filepath.Join(w.tmp, "run"), sessions: cmp.Or(cfg.sessions, 8), programs: cfg.programs}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.end(t) })
	addr := func(name string) string { return "unix://" + filepath.Join(c.dir, name+".sock") }
	c.gatewayAddr = addr("gateway")
	if cfg.tcp {
		addr = func(string) string { return freePort(t) }
	}
	c.verifierAddr = addr("verifier")
	asked := c.verifierAddr // by drafters and the gateway
	if cfg.before != nil {
		asked = cfg.before(c.verifierAddr)
	}
	c.startNATS(t)
	target := cmp.Or(cfg.target, targetModel)
	if c.pool = c.natsURL; cfg.pool != nil {
		c.pool = cfg.pool(c.natsURL)
	}
	if c.drafter = cfg.drafter; c.drafter == "" {
		c.drafter = addr("drafter")
		if cfg.draft != "lookup" {
			c.drafters = append(c.drafters, c.tandem(t, "drafter", append([]string{"--listen", c.drafter, "--pool", c.pool, "--threads",
				"1",
				"--verifier", asked, "--draft", cmp.Or(cfg.draft, draftModel)}, cfg.drafterFlags...)...))
		}
	}
	c.verifier = c.verifierOf(t, append([]string{"--target", target}, cfg.verifierFlags...)...)
	c.gateway = c.tandem(t, "gateway", append([]string{"--http", "off", "--listen", c.gatewayAddr, "--pool", c.pool, "--drafter", c.drafter,
		"--verifier", asked,
		"--target", target}, cfg.gatewayFlags...)...)
	all := append([]*process{c.gateway, c.verifier}, c.drafters...)
	ready := make([]<-chan struct{}, len(all))
	for i, p := range all {
		ready[i] = p.begin()
	}
	for i, p := range all {
		p.await(ready[i])
	}
	var err error
	if c.client, err = client.Dial(c.gatewayAddr, client.WithResume(0)); err != nil { // tests see what breaks off
		t.Fatal(err)
	}
	return c
}

// verifierOf returns a verifier at the cluster's address, not started.
func (c *cluster) verifierOf(t testing.TB, args ...string) *process {
	return c.tandem(t, "verifier", append([]string{"--listen", c.verifierAddr, "--pool", c.pool, "--drafter", c.drafter, "--threads", "1"},
		args...)...)
}

// tandem returns a process of the cluster, not started.
func (c *cluster) tandem(t testing.TB, role string, args ...string) *process {
	return &process{t: t, name: role, make: func(ctx context.Context) *exec.Cmd {
		cmd := c.w.command(ctx, append([]string{role, "--ready-fd", "3", "--sessions", strconv.Itoa(c.sessions), "--grace", "1s"},
			args...)...)
		if p := c.programs[role]; p != "" {
			cmd.Path = p
		}
		return cmd
	}}
}

// startNATS starts the NATS server on a port that it will have again when it is started again.
func (c *cluster) startNATS(t testing.TB) {
	t.Helper()
	addr := freePort(t)
	c.natsURL = "nats://" + addr
	c.nats = &process{t: t, name: "nats", make: func(ctx context.Context) *exec.Cmd {
		cmd := c.w.command(ctx)
		cmd.Path, cmd.Args = os.Args[0], os.Args[:1]
		cmd.Env = append(cmd.Env, natsAddress+"="+addr)
		return cmd
	}}
	c.beginNATS(t)
}

// beginNATS starts the server, again after a kill, and waits until it takes connections.
func (c *cluster) beginNATS(t testing.TB) {
	t.Helper()
	c.nats.begin()
	testkit.Eventually(t, "a NATS server", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.natsURL, "nats://"))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// end stops all processes that live.
func (c *cluster) end(t testing.TB) {
	if c.client != nil {
		_ = c.client.Close()
	}
	all := append([]*process{c.gateway, c.verifier}, c.drafters...)
	for _, p := range all {
		if p != nil {
			p.stop()
		}
	}
	if c.nats != nil {
		c.nats.kill()
	}
	if t.Failed() {
		for _, p := range all {
			if p != nil && p.cmd != nil {
				t.Logf("stderr of %s:\n%.4000s", p.name, p.stderr)
			}
		}
	}
	os.RemoveAll(c.dir)
}

// usage is what a process takes of the system.
type usage struct {
	descriptors, memory, threads int // memory: descriptors of memory files
	resident                     int64
}

func (u usage) String() string {
	return fmt.Sprintf("%d descriptors, %d of them memory files, %d threads, %d MiB", u.descriptors, u.memory, u.threads, u.resident>>20)
}

// usageOf looks at a process of the world.
func usageOf(pid int) (u usage) {
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	for _, fd := range fds {
		u.descriptors++
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())); strings.HasPrefix(to, "/memfd:") {
			u.memory++
		}
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch n, _ := strconv.Atoi(f[1]); f[0] {
		case "Threads:":
			u.threads = n
		case "VmRSS:":
			u.resident = int64(n) << 10
		}
	}
	return u
}

// usages looks at every process of tandem in the world, by role; several of a role are added up.
func (w *world) usages() map[string]usage {
	all := map[string]usage{}
	for _, role := range []string{"gateway", "verifier", "drafter"} {
		for _, pid := range w.role(role) {
			sum, u := all[role], usageOf(pid)
			all[role] = usage{sum.descriptors + u.descriptors, sum.memory + u.memory, sum.threads + u.threads, sum.resident + u.resident}
		}
	}
	return all
}

// settled waits until every role takes no more than it did before, and no memory of a KV cache, and says what is too
// much if it stays so for longer than patience; 0 leaves the KV cache out. Threads of Go do not end, so that a few more are no loss.
func (g *group) settled(t testing.TB, before map[string]usage, patience time.Duration) {
	t.Helper()
	var now map[string]usage
	excess := func() string {
		now = g.w.usages()
		for name, v := range g.allCounters(t) {
			if strings.HasSuffix(name, " kv.pages") && v != 0 && patience > 0 {
				return fmt.Sprintf("%s: %d pages of the KV cache are held by nobody's sessions", name, v)
			}
		}
		for role, b := range before {
			n := now[role]
			if n.descriptors > b.descriptors || n.memory > b.memory || n.threads > b.threads+12 || n.resident > b.resident*3/2+32<<20 {
				return fmt.Sprintf("%s: %v; before the faults %v", role, n, b)
			}
		}
		return ""
	}
	for deadline := time.Now().Add(max(patience, 8*time.Second)); ; time.Sleep(50 * time.Millisecond) {
		what := excess()
		if what == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Error(what)
			break
		}
	}
	for role, n := range now {
		t.Logf("%s: %v; before: %v", role, n, before[role])
	}
}

package test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/rpc/certtest"
)

// boxes are two boxes on one, as docs/guides/two-boxes.md has them: its commands run with other addresses.
type boxes struct {
	group
	dir                        string            // with the certificates
	guide                      map[string]string // its commands, by their first words
	verifier, drafter          string            // addresses
	gateway, verifying, drafts *process
}

// newBoxes makes the certificates and prepares the processes; nothing is started.
func newBoxes(t *testing.T) *boxes {
	t.Helper()
	ip := certtest.Outside()
	if ip == "" {
		t.Skip("this host has no address but loopback: two boxes cannot be played")
	}
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl, with which the guide makes certificates: apt-get install openssl brings it")
	}
	b := &boxes{group: group{w: newWorld(t)}, guide: map[string]string{}}
	b.dir = filepath.Join(b.w.tmp, "run")
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range []*process{b.gateway, b.verifying, b.drafts} {
			if p != nil {
				p.stop()
			}
		}
		if b.client != nil {
			_ = b.client.Close()
		}
		os.RemoveAll(b.dir)
	})
	var pool string
	for _, addr := range []*string{&pool, &b.verifier, &b.drafter} {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
		if err != nil {
			t.Fatal(err)
		}
		*addr = l.Addr().String()
		defer l.Close()
	}
	target, errTarget := filepath.Abs(targetModel)
	draft, errDraft := filepath.Abs(draftModel)
	text, err := os.ReadFile("../docs/guides/two-boxes.md")
	if err != nil || errTarget != nil || errDraft != nil {
		t.Fatal(err, errTarget, errDraft)
	}
	sock := "unix://" + filepath.Join(b.dir, "gateway.sock")
	here := strings.NewReplacer("10.0.0.1:8454", pool, "10.0.0.2:8453", b.verifier, "10.0.0.2:8452", b.drafter, "10.0.0.1", ip, "10.0.0.2",
		ip,
		"127.0.0.1:8451", sock, "big.gguf", target, "small.gguf", draft, "./tandem", program)
	for _, f := range fences(string(text)) {
		words := strings.Fields(f.script)
		b.guide[words[0]+" "+words[1]] = here.Replace(f.script)
	}
	if !strings.Contains(b.guide["./tandem verifier"], "--set secret-file=secret") {
		t.Fatal("the guide's verifier has no secret")
	}
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", b.guide["openssl req"])
	cmd.Dir = b.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("making certificates: %v\n%s", err, out)
	}
	b.gateway = b.process(t, "gateway", "--listen", sock, "--http", "off")
	b.verifying = b.process(t, "verifier", "--threads", "1")
	b.drafts = b.process(t, "drafter", "--threads", "1")
	if b.client, err = client.Dial(sock); err != nil {
		t.Fatal(err)
	}
	return b
}

// shell returns a command of the guide with more arguments.
func (b *boxes) shell(t *testing.T, ctx context.Context, command string, more ...string) *exec.Cmd {
	t.Helper()
	script := b.guide["./tandem "+command]
	if script == "" {
		t.Fatalf("the guide has no command %q", command)
	}
	cmd := b.w.command(ctx)
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path, cmd.Args, cmd.Dir = bash, []string{"bash", "-euc", "exec " + script + " " + strings.Join(more, " ")}, b.dir
	return cmd
}

func (b *boxes) process(t *testing.T, role string, more ...string) *process {
	return &process{t: t, name: role, make: func(ctx context.Context) *exec.Cmd {
		return b.shell(t, ctx, role, append(more, "--ready-fd", "3", "--grace", "1s")...)
	}}
}

// TestTwoBoxes generates with drafter and verifier at the other end of TCP connections with TLS: the same tokens as
// on one box, and drafts among them. No memory is shared: trees travel inside tickets and answers. Then each
// process is killed and started again.
func TestTwoBoxes(t *testing.T) {
	mayBeSlow(t)
	t.Parallel()
	b := newBoxes(t)
	const text = "func (r *Reader) Read("
	want := b.w.generate("--target", targetModel, "--no-draft", "--prompt", text, "--max-tokens", "48")
	for _, p := range []*process{b.verifying, b.drafts, b.gateway} { // the pool, which is the gateway's, comes last
		p.start()
	}
	r := withTree(setting{}.request(text, 48), trees[0])
	drafted := func(what string) {
		t.Helper()
		var got result
		testkit.Eventually(t, "drafts "+what, func() bool {
			var err error
			got, err = b.try(t.Context(), r)
			return err == nil && got.finished.Statistics.Accepted > 0
		})
		if !slices.EqualFunc(got.tokens, want.Tokens, func(a uint32, b int32) bool { return a == uint32(b) }) {
			t.Errorf("tokens %s\n%v, on one box\n%v", what, got.tokens, want.Tokens)
		}
	}
	drafted("between two boxes")
	e := b.w.wait(b.shell(t, t.Context(), "generate", "--max-tokens", "48"))
	if e.code != 0 || e.stdout != want.Text+"\n" && e.stdout != want.Text {
		t.Errorf("the guide's generate: exit code %d, %q, %s: want %q", e.code, e.stdout, e.stderr, want.Text)
	}
	for _, p := range []*process{b.drafts, b.verifying, b.gateway} {
		p.kill()
		p.start()
		drafted("after a kill of the " + p.name)
	}
	b.strangers(t)
	b.roles(t)
}

// strangers try to talk to the processes, and are not let in.
func (b *boxes) strangers(t *testing.T) {
	if e := b.w.wait(b.shell(t, t.Context(), "health")); e.code != 0 {
		t.Errorf("the verifier does not answer the guide's health check: %s", e.stderr)
	}
	dir := t.TempDir()
	other, err := certtest.NewCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	host, _, _ := net.SplitHostPort(b.verifier)
	cert, key, err := other.Issue(dir, certtest.Options{Names: []string{host}, Roles: []string{"gateway", "drafter", "verifier"}})
	if err != nil {
		t.Fatal(err)
	}
	stranger := []string{"--tls-cert", cert, "--tls-key", key, "--tls-ca", other.File}
	for _, addr := range []string{b.verifier, b.drafter} {
		if e := b.w.run(append([]string{"health", "--addr", addr}, stranger...)...); e.code != 1 ||
			!strings.Contains(e.stderr, "certificate signed by unknown authority") {
			t.Errorf("%s answers a stranger: exit code %d, %s", addr, e.code, e.stderr)
		}
		if e := b.w.run("health", "--addr", addr); e.code != 1 || e.stdout != "" {
			t.Errorf("%s answers without encryption: exit code %d, %s", addr, e.code, e.stderr)
		}
	}
	// a drafter of another CA, on the pool's own address, is never heard
	sock := "unix://" + filepath.Join(b.dir, "stranger.sock")
	p := &process{t: t, name: "stranger", make: func(ctx context.Context) *exec.Cmd {
		cmd := b.shell(t, ctx, "drafter", append(stranger, "--listen", sock, "--ready-fd", "3")...)
		return cmd
	}}
	p.start()
	defer p.stop()
	time.Sleep(time.Second) // two announcements
	d, err := b.client.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	drafters := 0
	for _, x := range d.GetProcesses() {
		if x.GetRole() == "drafter" && x.GetPid() != 0 {
			drafters++
		}
	}
	if drafters != 1 {
		t.Errorf("the gateway knows %d drafters: want the one that has a certificate of its CA", drafters)
	}
}

// roles: a certificate of the right CA does what its roles say, and nothing else.
func (b *boxes) roles(t *testing.T) {
	file := func(name string) string { return filepath.Join(b.dir, name) }
	for box, want := range map[string]tandem.Kind{"a": tandem.OK, "b": tandem.Unauthenticated} {
		certificate, err := rpc.TLSFiles{Cert: file(box + ".pem"), Key: file(box + ".key"), CA: file("ca.pem")}.Load()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := (&rpc.Credentials{Certificate: certificate}).Dialer(rpc.Verifier)(b.verifier)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if got := tandem.KindOf(subscribe(t, conn)); got != want {
			t.Errorf("box %s, of which only a has a gateway's certificate, subscribes to verdicts: %v, want %v", box, got, want)
		}
	}
	e := b.w.wait(b.shell(t, t.Context(), "gateway", "--tls-cert", file("b.pem"), "--tls-key", file("b.key")))
	if e.code != 2 && e.code != 1 || !strings.Contains(e.stderr, "URI:tandem://role/gateway") {
		t.Errorf("a gateway with box b's certificate: exit code %d, %s: want what it lacks", e.code, e.stderr)
	}
}

// TestPublicTLS serves clients on an address that other machines reach: those with a certificate, with the same text.
func TestPublicTLS(t *testing.T) {
	t.Parallel()
	ip := certtest.Outside()
	if ip == "" {
		t.Skip("this host has no address but loopback")
	}
	dir := t.TempDir()
	ca, err := certtest.NewCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(dir, certtest.Options{Names: []string{ip}})
	if err != nil {
		t.Fatal(err)
	}
	secure := []string{"--tls-cert", cert, "--tls-key", key, "--tls-ca", ca.File}
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	w := newWorld(t)
	cmd := w.command(t.Context(), append([]string{"up", "--listen", l.Addr().String(), "--http", "off", "--target", targetModel, "--draft",
		draftModel}, secure...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ask := []string{"generate", "--addr", l.Addr().String(), "--prompt", "import os", "--max-tokens", "8"}
	want := w.ok("generate", "--no-draft", "--target", targetModel, "--prompt", "import os", "--max-tokens", "8").stdout
	if got := w.ok(append(ask, secure...)...).stdout; got != want {
		t.Errorf("with a certificate: %q, want %q", got, want)
	}
	if e := w.run(ask...); e.code == 0 {
		t.Errorf("without a certificate: %q", e.stdout)
	}
}

// TestInsecureListen has every role refuse to be found by other machines without protection.
func TestInsecureListen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, args := range [][]string{
		{"gateway", "--listen", "0.0.0.0:0", "--http", "off", "--target", targetModel},
		{"gateway", "--listen", "127.0.0.1:0", "--http", "off", "--pool-listen", "0.0.0.0:0", "--target", targetModel},
		{"verifier", "--listen", "[::]:0", "--target", targetModel, "--pool", "nats://127.0.0.1:4222"},
		{"drafter", "--listen", "0.0.0.0:0", "--draft", draftModel, "--pool", "nats://127.0.0.1:4222"},
		{"drafter", "--listen", "127.0.0.1:0", "--advertise", "box", "--draft", draftModel, "--pool", "nats://127.0.0.1:4222"},
		{"up", "--listen", "0.0.0.0:0", "--http", "off", "--target", targetModel, "--draft", draftModel},
		{"gateway", "--listen", "127.0.0.1:0", "--http", "off", "--tls-cert", "x.pem", "--target", targetModel},
		{"gateway", "--listen", "127.0.0.1:0", "--http", "off", "--pool", "nats://127.0.0.1:1", "--pool-listen", "127.0.0.1:0", "--target",
			targetModel},
	} {
		e := w.run(args...)
		if e.code == 0 || e.code > 2 || strings.Count(strings.TrimSpace(e.stderr), "\n") != 0 || !strings.Contains(e.stderr, "want") &&
			!strings.Contains(e.stderr, "--insecure-listen") {
			t.Errorf("tandem %v: exit code %d, %q: want a refusal that says what would be right", args, e.code, e.stderr)
		}
	}
}

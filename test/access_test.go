package test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/tandem-llm/tandem/client"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// stranger returns a connection that shows nothing of tandem's but those metadata, with every call.
func stranger(t *testing.T, addr string, md ...string) *grpc.ClientConn {
	t.Helper()
	with := func(ctx context.Context) context.Context { return metadata.AppendToOutgoingContext(ctx, md...) }
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
			opts ...grpc.CallOption) error {
			return invoke(with(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
			opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(with(ctx), d, cc, method, opts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// member returns a connection whose calls prove that the caller has the secret in a file.
func member(t *testing.T, addr, file string) *grpc.ClientConn {
	t.Helper()
	secret, err := rpc.OpenSecret(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&rpc.Credentials{Secret: secret}).Dialer("")(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// subscribe asks a verifier for verdicts; nil if the subscription holds.
func subscribe(t *testing.T, conn *grpc.ClientConn) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := peerv1.NewVerifierServiceClient(conn).Verdicts(ctx, &peerv1.VerdictsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return rpc.FromStatus(err)
	}
	if md, err := s.Header(); err == nil && md != nil {
		return nil
	}
	_, err = s.Recv()
	return rpc.FromStatus(err)
}

// reflects reports whether the server tells what it serves.
func reflects(t *testing.T, conn *grpc.ClientConn) bool {
	t.Helper()
	s, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	_, err = s.Recv()
	return err == nil
}

// refusedAll checks that a connection is let in nowhere but at the health service.
func refusedAll(t *testing.T, who string, conn *grpc.ClientConn) {
	t.Helper()
	ctx, v := t.Context(), peerv1.NewVerifierServiceClient(conn)
	opening := &peerv1.Opening{Session: 1, Tokens: []uint32{1, 2}, Limit: 10, MaxNodes: 1, Tenant: "a"}
	_, open := v.Open(ctx, &peerv1.VerifierServiceOpenRequest{Opening: opening})
	_, shut := v.Close(ctx, &peerv1.VerifierServiceCloseRequest{Session: 1})
	_, describe := v.Describe(ctx, &peerv1.VerifierServiceDescribeRequest{})
	_, submit := v.Submit(ctx, &peerv1.SubmitRequest{})
	for what, err := range map[string]error{"opens": open, "closes": shut, "describes": describe, "submits": submit} {
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s %s: %v: want unauthenticated", who, what, err)
		}
	}
	if err := subscribe(t, conn); err == nil || !strings.Contains(err.Error(), "--secret-file") {
		t.Errorf("%s subscribes to verdicts: %v: want a refusal that says what is missing", who, err)
	}
	if reflects(t, conn) {
		t.Errorf("%s is told by reflection what there is", who)
	}
}

// byHand returns a process that is started with those arguments alone, as a person would.
func byHand(t *testing.T, w *world, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: args[0], make: func(ctx context.Context) *exec.Cmd {
		return w.command(ctx, append(slices.Clone(args), "--ready-fd", "3", "--grace", "1s")...)
	}}
	t.Cleanup(func() {
		if p.cmd != nil {
			p.stop()
		}
	})
	return p
}

// TestVerifierAlone: started by hand, it is reached by its user alone, on a socket; on loopback only with the secret.
func TestVerifierAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := byHand(t, w, "verifier", "--target", targetModel, "--pool", "nats://127.0.0.1:1", "--threads", "1", "--no-measure")
	p.start()
	if tcp := w.listening(t); len(tcp) != 0 {
		t.Errorf("it listens on TCP: %v", tcp)
	}
	folder := filepath.Join(w.home, "tandem")
	for path, want := range map[string]os.FileMode{folder: os.ModeDir | 0o700,
		filepath.Join(folder, "verifier.sock"): os.ModeSocket | 0o600} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v: want mode %v", path, info, err, want)
		}
	}
	sock := "unix://" + filepath.Join(folder, "verifier.sock")
	nobody := stranger(t, sock)
	if err := subscribe(t, nobody); err == nil {
		t.Error("a process of the same user that says nothing of itself subscribes to verdicts")
	}
	if reflects(t, nobody) {
		t.Error("the socket has reflection")
	}
	w.ok("health", "--addr", sock)
	p.stop()

	secret := filepath.Join(w.home, "s")
	if err := os.WriteFile(secret, []byte("what-all-processes-know\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(w.home, "other")
	if err := os.WriteFile(other, []byte("what-no-process-knows\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		secret string // its file
	}{{nil, filepath.Join(folder, "secret")}, {[]string{"--secret-file", secret}, secret}} {
		addr := freePort(t)
		p := byHand(t, w, append([]string{"verifier", "--target", targetModel, "--pool", "nats://127.0.0.1:1", "--threads", "1",
			"--no-measure", "--listen", addr}, c.args...)...)
		p.start()
		known, err := os.ReadFile(c.secret) // without the flag it has made one of its own
		info, errStat := os.Stat(c.secret)
		if err != nil || errStat != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("the secret: %v, %v", err, info)
		}
		refusedAll(t, "who has nothing", stranger(t, addr))
		refusedAll(t, "who has a number", stranger(t, addr, "tandem-process", "a1"))
		refusedAll(t, "who has another secret", stranger(t, addr, "tandem-process", "a1", "tandem-proof", "x."+strings.Repeat("0", 64)))
		if err := subscribe(t, member(t, addr, other)); err == nil {
			t.Error("who proves another secret subscribes to verdicts")
		}
		if err := subscribe(t, member(t, addr, c.secret)); err != nil {
			t.Errorf("who has the secret: %v", err)
		}
		w.ok("health", "--addr", addr) // without it
		p.stop()
		if log := p.stderr.String(); strings.Contains(log, strings.TrimSpace(string(known))) {
			t.Errorf("the secret is in the log:\n%s", log)
		}
	}
	for name, change := range map[string]func() error{
		"want 0600":        func() error { return os.Chmod(secret, 0o640) },
		"no such file":     func() error { return os.Remove(secret) },
		"want one line of": func() error { return os.WriteFile(secret, []byte("x"), 0o600) },
	} {
		if err := errors.Join(os.WriteFile(secret, []byte("what-all-processes-know\n"), 0o600), change()); err != nil {
			t.Fatal(err)
		}
		refused(t, w.run("verifier", "--target", targetModel, "--pool", "nats://127.0.0.1:1", "--listen", "127.0.0.1:0", "--secret-file",
			secret), name)
		_ = os.Remove(secret)
	}
	for _, spoilt := range []struct {
		says string
		by   func() error
	}{
		{"want 0700", func() error { return os.Chmod(folder, 0o755) }},
		{"no folder", func() error { return errors.Join(os.RemoveAll(folder), os.Symlink(w.tmp, folder)) }},
	} {
		if err := spoilt.by(); err != nil {
			t.Fatal(err)
		}
		refused(t, w.run("verifier", "--target", targetModel, "--pool", "nats://127.0.0.1:1"), spoilt.says)
	}
}

// TestProcessesByHand runs the commands of docs/guides/processes.md: they find each other on their default sockets, draft, and
// write the text of any other way to run them. No other test's processes are in the way.
func TestProcessesByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := w.generate("--target", targetModel, "--no-draft", "--prompt", "func (r *Reader) Read(", "--max-tokens", "32")
	gateway := "unix://" + filepath.Join(w.home, "g.sock")
	commands := guide(t, "../docs/guides/processes.md", w.home)
	for _, role := range []string{"gateway", "verifier", "drafter"} {
		args := commands[role]
		if role == "gateway" {
			args = append(args, "--listen", gateway, "--http", "off") // the machine's ports may be in use
		} else {
			args = append(args, "--threads", "1")
		}
		byHand(t, w, args...).start()
	}
	testkit.Eventually(t, "a text with drafts", func() bool {
		e := w.run("generate", "--json", "--addr", gateway, "--prompt", "func (r *Reader) Read(", "--max-tokens", "32", "--strategy",
			"fixed")
		if e.code != 0 {
			return false
		}
		g := w.decode(e.stdout)
		if !slices.Equal(g.Tokens, want.Tokens) {
			t.Fatalf("tokens %v: want %v", g.Tokens, want.Tokens)
		}
		return g.Stats.Accepted > 0
	})
}

// guide returns the arguments of a guide's commands by role, with the shipped models and a pool's file in dir.
func guide(t *testing.T, path, dir string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	target, errTarget := filepath.Abs(targetModel)
	draft, errDraft := filepath.Abs(draftModel)
	if err := errors.Join(errTarget, errDraft); err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer("big.gguf", target, "small.gguf", draft, "file:pool", "file:"+filepath.Join(dir, "pool"),
		"--pool-file pool", "--pool-file "+filepath.Join(dir, "pool"))
	out := map[string][]string{}
	for _, f := range fences(string(text)) {
		if words := strings.Fields(here.Replace(f.script)); len(words) > 1 && words[0] == "./tandem" && out[words[1]] == nil {
			out[words[1]] = words[1:]
		}
	}
	return out
}

// TestTwoGatewaysOneVerifier: both generate at once, with their own texts; neither hears of a session of the other.
func TestTwoGatewaysOneVerifier(t *testing.T) {
	t.Parallel()
	c := newCluster(t, clusterConfig{})
	second := c.tandem(t, "gateway", "--http", "off", "--listen", "unix://"+filepath.Join(c.dir, "second.sock"), "--pool", c.natsURL,
		"--drafter", c.drafter, "--verifier", c.verifierAddr,
		"--target", targetModel)
	second.start()
	defer second.stop()
	other, err := client.Dial("unix://" + filepath.Join(c.dir, "second.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	mine, its := group{w: c.w, client: c.client}, group{w: c.w, client: other}
	r := withTree(setting{}.request("func (r *Reader) Read(", 96), trees[0])
	q := withTree(setting{}.request("import os\n", 96), trees[0])
	wantR, wantQ := must(t)(mine.try(t.Context(), r)), must(t)(mine.try(t.Context(), q))
	var both sync.WaitGroup
	for range 3 {
		both.Go(func() {
			if got, err := mine.try(t.Context(), r); err != nil || !slices.Equal(got.tokens, wantR.tokens) {
				t.Errorf("the first gateway: %v, %v: want %v", got.tokens, err, wantR.tokens)
			}
		})
		both.Go(func() {
			if got, err := its.try(t.Context(), q); err != nil || !slices.Equal(got.tokens, wantQ.tokens) {
				t.Errorf("the second gateway: %v, %v: want %v", got.tokens, err, wantQ.tokens)
			}
		})
	}
	both.Wait()
	for name, g := range map[string]*client.Client{"first": c.client, "second": other} {
		d, err := g.Describe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range d.GetProcesses() {
			n := p.GetCounters()
			if p.GetRole() == "gateway" && n["verdicts.unknown_session"] != 0 {
				t.Errorf("the %s gateway heard %d verdicts on sessions that it does not have", name, n["verdicts.unknown_session"])
			}
			if p.GetRole() == "verifier" && (n["verdicts"] == 0 || n["sessions.foreign"] != 0) {
				t.Errorf("the verifier counted %v", n)
			}
		}
	}
	// one of them is killed: the other goes on, and the verifier is rid of what the dead one had
	second.kill()
	if got, err := mine.try(t.Context(), r); err != nil || !slices.Equal(got.tokens, wantR.tokens) {
		t.Errorf("after the second gateway's death: %v, %v", got.tokens, err)
	}
}

// must returns a function that fails the test for an error.
func must(t *testing.T) func(result, error) result {
	return func(r result, err error) result {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// TestSecretIsReplaced: on loopback TCP, all with one file, requests go on while it is replaced.
func TestSecretIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret := filepath.Join(w.home, "secret")
	replace := func(n int) {
		t.Helper()
		if err := errors.Join(os.WriteFile(secret+".new", []byte("secret-number-"+strconv.Itoa(n)+"-of-a-test\n"), 0o600),
			os.Rename(secret+".new", secret)); err != nil {
			t.Fatal(err)
		}
	}
	replace(1)
	pool, verifier, drafter := freePort(t), freePort(t), freePort(t)
	gateway := "unix://" + filepath.Join(w.home, "g.sock")
	all := [][]string{
		{"gateway", "--http", "off", "--listen", gateway, "--pool-listen", pool, "--verifier", verifier, "--target", targetModel},
		{"verifier", "--listen", verifier, "--pool", "nats://" + pool, "--target", targetModel, "--threads", "1", "--no-measure"},
		{"drafter", "--listen", drafter, "--pool", "nats://" + pool, "--draft", draftModel, "--threads", "1"},
	}
	var running []*process
	for _, args := range all {
		p := byHand(t, w, append(args, "--secret-file", secret)...)
		p.start()
		running = append(running, p)
	}
	generate := func() generation {
		e := w.run("generate", "--json", "--addr", gateway, "--prompt", "import os", "--max-tokens", "24", "--strategy", "fixed")
		if e.code != 0 {
			t.Fatalf("exit code %d: %s", e.code, e.stderr)
		}
		return w.decode(e.stdout)
	}
	var first generation
	testkit.Eventually(t, "a text with drafts", func() bool { first = generate(); return first.Stats.Accepted > 0 })
	for n := 2; n < 5; n++ {
		replace(n)
		if got := generate(); !slices.Equal(got.Tokens, first.Tokens) {
			t.Errorf("with secret %d: %v, want %v", n, got.Tokens, first.Tokens)
		}
		time.Sleep(1100 * time.Millisecond)
		if got := generate(); got.Stats.Accepted == 0 {
			t.Errorf("with secret %d no draft is accepted any more", n)
		}
		refusedAll(t, "who has none of the secrets", stranger(t, verifier, "tandem-process", "a1", "tandem-proof",
			"x."+strings.Repeat("0", 64)))
	}
	running[2].kill() // whoever starts now has the new one alone
	running[2].start()
	testkit.Eventually(t, "drafts after a restart", func() bool { return generate().Stats.Accepted > 0 })
	for _, p := range running {
		if strings.Contains(p.stderr.String(), "secret-number") {
			t.Errorf("%s logs a secret: %s", p.name, p.stderr)
		}
	}
	// a gateway with another secret is told by the verifier and the pool, and says so
	wrong := filepath.Join(w.home, "wrong")
	if err := os.WriteFile(wrong, []byte("not-the-secret-of-the-others"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := byHand(t, w, "gateway", "--http", "off", "--listen", "unix://"+filepath.Join(w.home, "w.sock"), "--pool", "nats://"+pool,
		"--verifier", verifier, "--target", targetModel, "--secret-file", wrong)
	p.start()
	for _, says := range []string{"the verifier refuses this gateway", "the pool's server does not let this process in"} {
		testkit.Eventually(t, says, func() bool { return strings.Contains(p.stderr.String(), says) })
	}
}

// TestKeyBeforeMessage: the public API refuses a wrong key although the message has not come.
func TestKeyBeforeMessage(t *testing.T) {
	t.Parallel()
	g := up(t, "--api-key", "right")
	addr := "unix://" + filepath.Join(g.w.tmp, "g.sock")
	for key, want := range map[string]codes.Code{"Bearer wrong": codes.Unauthenticated, "Bearer right": codes.DeadlineExceeded} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		s, err := stranger(t, addr, "authorization", key).NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
			"/tandem.v1.GenerationService/Generate")
		if err == nil {
			err = s.RecvMsg(new(peerv1.SubmitResponse))
		}
		if status.Code(err) != want {
			t.Errorf("%s, and no message: %v: want %v", key, err, want)
		}
		cancel()
	}
}

// TestClientsReachNoPeerService: at a gateway's address for clients nothing answers that the processes offer each other, with a key or
// without.
func TestClientsReachNoPeerService(t *testing.T) {
	t.Parallel()
	g := up(t, "--api-key", "right")
	addr := "unix://" + filepath.Join(g.w.tmp, "g.sock")
	for key, want := range map[string]codes.Code{"Bearer wrong": codes.Unauthenticated, "Bearer right": codes.Unimplemented} {
		conn := stranger(t, addr, "authorization", key)
		for _, d := range []grpc.ServiceDesc{peerv1.VerifierService_ServiceDesc, peerv1.DrafterService_ServiceDesc} {
			for _, m := range d.Methods {
				err := conn.Invoke(t.Context(), "/"+d.ServiceName+"/"+m.MethodName, new(peerv1.SubmitRequest), new(peerv1.SubmitResponse))
				if status.Code(err) != want {
					t.Errorf("%s calls %s: %v: want %v", key, m.MethodName, err, want)
				}
			}
			for _, m := range d.Streams {
				s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
					"/"+d.ServiceName+"/"+m.StreamName)
				if err == nil {
					err = s.RecvMsg(new(peerv1.SubmitResponse))
				}
				if status.Code(err) != want {
					t.Errorf("%s calls %s: %v: want %v", key, m.StreamName, err, want)
				}
			}
		}
	}
}

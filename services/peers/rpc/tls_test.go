package rpc

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/services/peers/rpc/certtest"
)

// outside returns an address of this host that is not loopback.
func outside(t *testing.T) string {
	t.Helper()
	ip := certtest.Outside()
	if ip == "" {
		t.Skip("this host has no address but loopback")
	}
	return ip
}

func load(t *testing.T, ca *certtest.CA, o certtest.Options) *Certificate {
	t.Helper()
	cert, key, err := ca.Issue(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	i, err := TLSFiles{cert, key, ca.File}.Load()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// anyOf dials as a process with that certificate, whatever the other end's role.
func anyOf(c *Certificate) func(string) (*grpc.ClientConn, error) {
	return (&Credentials{Certificate: c}).Dialer("")
}

func newCA(t *testing.T) *certtest.CA {
	t.Helper()
	ca, err := certtest.NewCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// healthServer serves the health service alone.
func healthServer(t *testing.T, cfg ServerConfig) string {
	t.Helper()
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	return s.Addr()
}

// run serves until the test ends.
func run(t *testing.T, s *Server) {
	s.SetServing(true)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); work.Wait() })
}

// check asks a server for its health. An attempt to connect that takes too long, on a busy machine, is made again.
func check(t *testing.T, conn *grpc.ClientConn, err error) error {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
			return err
		}
	}
}

// TestMutualTLS has every kind of caller ask a server on an address that other machines can reach.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	ip := outside(t)
	ca := newCA(t)
	server := load(t, ca, certtest.Options{Names: []string{ip}})
	addr := healthServer(t, ServerConfig{Listen: net.JoinHostPort(ip, "0"), TLS: server})
	friend := load(t, ca, certtest.Options{Names: []string{"elsewhere"}})
	stranger := load(t, newCA(t), certtest.Options{Names: []string{ip}})
	for _, c := range []struct {
		name string
		dial func(string) (*grpc.ClientConn, error)
		says string // "": it is let in
	}{
		{"a certificate of the CA", anyOf(friend), ""},
		{"the process itself", (&Credentials{Certificate: server}).DialListener, ""},
		{"another CA", anyOf(stranger), "certificate signed by unknown authority"},
		{"no TLS", Dial, "server preface"},
		{"no certificate", func(addr string) (*grpc.ClientConn, error) {
			return dial(addr, func() *tls.Config { return &tls.Config{RootCAs: friend.Client().RootCAs} }, nil)
		}, "rpc: "}, // the server's word for it, or its hanging up, whichever is seen first
		{"TLS 1.2", func(addr string) (*grpc.ClientConn, error) {
			old := friend.Client()
			old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
			return dial(addr, func() *tls.Config { return old }, nil)
		}, "protocol version not supported"},
	} {
		conn, err := c.dial(addr)
		err = check(t, conn, err)
		if c.says == "" && err != nil || c.says != "" && (tandem.KindOf(err) != tandem.Unavailable ||
			!strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v: want %q", c.name, err, c.says)
		}
	}

	wrong := healthServer(t, ServerConfig{Listen: net.JoinHostPort(ip, "0"), TLS: friend})
	conn, err := anyOf(server)(wrong)
	if err := check(t, conn, err); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server with another's name: %v", err)
	}
	open := healthServer(t, ServerConfig{Listen: net.JoinHostPort(ip, "0"), Insecure: true})
	conn, err = anyOf(friend)(open)
	if err := check(t, conn, err); err == nil || !strings.Contains(err.Error(), "first record does not look like a TLS handshake") {
		t.Errorf("a server without TLS: %v", err)
	}
	// loopback and unix sockets do without, on both sides
	for _, listen := range []string{"127.0.0.1:0", "unix://" + filepath.Join(t.TempDir(), "s")} {
		plain := healthServer(t, ServerConfig{Listen: listen, TLS: server})
		for _, dial := range []func(string) (*grpc.ClientConn, error){Dial, anyOf(friend),
			(&Credentials{Certificate: server}).DialListener} {
			conn, err := dial(plain)
			if err := check(t, conn, err); err != nil {
				t.Errorf("%s: %v", listen, err)
			}
		}
	}
	anywhere := healthServer(t, ServerConfig{Listen: "0.0.0.0:0", TLS: server})
	conn, err = (&Credentials{Certificate: server}).DialListener(anywhere)
	if err := check(t, conn, err); err != nil {
		t.Errorf("the process itself, listening everywhere: %v", err)
	}
}

// TestRenewal puts another certificate in the place of the first, then garbage.
func TestRenewal(t *testing.T) {
	t.Parallel()
	ip := outside(t)
	ca, dir := newCA(t), t.TempDir()
	cert, key, err := ca.Issue(dir, certtest.Options{Names: []string{"first"}})
	if err != nil {
		t.Fatal(err)
	}
	server, err := TLSFiles{cert, key, ca.File}.Load()
	if err != nil {
		t.Fatal(err)
	}
	addr := healthServer(t, ServerConfig{Listen: net.JoinHostPort(ip, "0"), TLS: server})
	friend := load(t, ca, certtest.Options{Names: []string{"friend"}})
	conn, err := anyOf(friend)(addr)
	if err := check(t, conn, err); err == nil {
		t.Fatal("a server without the name that was dialed is trusted")
	}
	if _, _, err := ca.Issue(dir, certtest.Options{Names: []string{ip}}); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(cert, later, later); err != nil {
		t.Fatal(err)
	}
	conn, err = anyOf(friend)(addr)
	if err := check(t, conn, err); err != nil {
		t.Errorf("renewed certificate: %v", err)
	}
	if err := os.WriteFile(cert, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	conn, err = anyOf(friend)(addr)
	if err := check(t, conn, err); err != nil {
		t.Errorf("after a certificate that cannot be used: %v: want the last good one", err)
	}
}

// lines is a log of several goroutines.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// TestAuthorityIsReplaced: a server and a caller that run move to another authority. Connections that are there go on; new ones are judged
// by what the files hold then, on both sides.
func TestAuthorityIsReplaced(t *testing.T) {
	t.Parallel()
	ip := outside(t)
	first, second, dir := newCA(t), newCA(t), t.TempDir()
	authorities := filepath.Join(dir, "authorities.pem")
	trust := func(all ...*certtest.CA) {
		t.Helper()
		var pem []byte
		for _, ca := range all {
			one, err := os.ReadFile(ca.File)
			if err != nil {
				t.Fatal(err)
			}
			pem = append(pem, one...)
		}
		if err := files.Replace(authorities, pem); err != nil {
			t.Fatal(err)
		}
	}
	at := func(who string) string {
		folder := filepath.Join(dir, who)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		return folder
	}
	issue := func(ca *certtest.CA, who string) *Certificate {
		t.Helper()
		cert, key, err := ca.Issue(at(who), certtest.Options{Names: []string{ip}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := TLSFiles{cert, key, authorities}.Load()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	trust(first)
	server, caller := issue(first, "server"), issue(first, "caller")
	var log lines
	counters := new(tandem.Counters)
	server.Report(slog.New(slog.NewTextHandler(&log, nil)), counters)
	addr := healthServer(t, ServerConfig{Listen: net.JoinHostPort(ip, "0"), TLS: server})
	running, err := anyOf(caller)(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	step := func(name string, want bool, callers ...*Certificate) {
		t.Helper()
		if _, err := grpc_health_v1.NewHealthClient(running).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
			t.Errorf("%s: the connection that was there: %v", name, err)
		}
		for i, c := range callers {
			conn, err := anyOf(c)(addr)
			if err := check(t, conn, err); (err == nil) != want {
				t.Errorf("%s: caller %d: %v: want it let in: %v", name, i, err, want)
			}
		}
	}
	step("at first", true, caller)
	trust(first, second)
	moved := issue(second, "moved")
	step("the overlap", true, caller, moved)
	if err := os.WriteFile(filepath.Join(at("server"), "cert.pem"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	step("a damaged certificate", true, caller, moved)
	issue(second, "server") // its key is another one's for a moment
	step("the server's new certificate", true, caller, moved)
	issue(second, "caller")
	step("the caller's new certificate", true, caller, moved)
	stays := load(t, first, certtest.Options{Names: []string{ip}})
	trust(second)
	step("the end of the old authority", true, caller, moved)
	step("a certificate of the old authority", false, stays)
	if n := strings.Count(log.String(), "stay as they were"); int64(n) != counters.Snapshot()["certificates.refused"] || n < 1 || n > 2 {
		t.Errorf("told %d times, counted %v: want once for the damaged one: %s", n, counters.Snapshot(), &log)
	}
}

func TestBadFiles(t *testing.T) {
	ca, dir := newCA(t), t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	issue := func(o certtest.Options) (string, string) {
		cert, key, err := ca.Issue(t.TempDir(), o)
		if err != nil {
			t.Fatal(err)
		}
		return cert, key
	}
	cert, key := issue(certtest.Options{Names: []string{"a"}})
	_, otherKey := issue(certtest.Options{Names: []string{"b"}})
	old, oldKey := issue(certtest.Options{Names: []string{"a"}, Expired: true})
	half, halfKey := issue(certtest.Options{Names: []string{"a"}, ServerOnly: true})
	for _, c := range []struct {
		files TLSFiles
		says  string
	}{
		{TLSFiles{cert, key, ""}, "want all three"},
		{TLSFiles{"", "", ca.File}, "want all three"},
		{TLSFiles{cert, key, "/nowhere"}, "/nowhere: no such file"},
		{TLSFiles{cert, key, garbage}, "holds no PEM certificate"},
		{TLSFiles{garbage, key, ca.File}, "holds no PEM block"},
		{TLSFiles{"/nowhere", key, ca.File}, "/nowhere: no such file"},
		{TLSFiles{cert, otherKey, ca.File}, "does not match"},
		{TLSFiles{cert, key, newCA(t).File}, "unknown authority"},
		{TLSFiles{old, oldKey, ca.File}, "expired"},
		{TLSFiles{half, halfKey, ca.File}, "incompatible key usage"},
	} {
		if _, err := c.files.Load(); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v: want %q", c.files, err, c.says)
		}
	}
	if i, err := (TLSFiles{}).Load(); i != nil || err != nil {
		t.Errorf("no files: %v, %v", i, err)
	}
}

func TestGuard(t *testing.T) {
	for addr, refused := range map[string]bool{
		"127.0.0.1:1": false, "localhost:1": false, ":1": false, "[::1]:1": false, "127.9.9.9:1": false, "unix:///x": false,
		"0.0.0.0:1": true, "[::]:1": true, "192.0.2.1:1": true,
	} {
		if err := Guard(addr, nil, false); (err != nil) != refused {
			t.Errorf("%s: %v: refused %v, want %v", addr, err, err != nil, refused)
		}
		if Guard(addr, nil, true) != nil || Guard(addr, new(Certificate), false) != nil {
			t.Errorf("%s is refused with a certificate or on purpose", addr)
		}
	}
	if _, err := NewServer(ServerConfig{Listen: "0.0.0.0:0"}); tandem.KindOf(err) != tandem.Invalid ||
		!strings.Contains(err.Error(), "--insecure-listen") {
		t.Errorf("server for everybody: %v", err)
	}
	healthServer(t, ServerConfig{Listen: "0.0.0.0:0", Insecure: true})
}

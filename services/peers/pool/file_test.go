package pool

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/rpc/certtest"
)

// TestFile names servers in a file, one after the other: none yet, one, another with another port and secret.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool")
	access, err := FromFile(path)
	if !errors.Is(err, fs.ErrNotExist) || tandem.KindOf(err) != tandem.Invalid {
		t.Fatalf("no file: %v", err)
	}
	cfg := Config{Access: access}
	p := newPublisher(t, PublisherConfig{Config: cfg})
	if err := p.Put(context.Background(), ticket(1, chain(2))); tandem.KindOf(err) != tandem.Unavailable ||
		!strings.Contains(err.Error(), path) {
		t.Errorf("put while no server is named: %v: want one that names the file", err)
	}
	for range 2 {
		s, err := StartServer()
		if err != nil {
			t.Fatal(err)
		}
		secret := s.Access().Token
		if err := os.WriteFile(path, []byte(strings.Replace(s.Access().URL, "://", "://"+secret+"@", 1)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "not connected to the server that the file names", p.Connected)
		if err := p.Put(context.Background(), ticket(1, chain(2))); tandem.KindOf(err) != tandem.Unavailable ||
			!strings.Contains(err.Error(), "no verifier") {
			t.Errorf("put with a server and no verifier: %v", err)
		}
		if a, err := FromFile(path); err != nil || a.URL != s.Access().URL || a.Token != "" {
			t.Errorf("the file holds %+v, %v", a, err)
		}
		s.Close()
		testkit.Eventually(t, "the loss is not noticed", func() bool { return !p.Connected() })
	}
	for _, bad := range []string{"", "x", "nats://", "nats://host", "http://host:1", "nats://secret@:1"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := FromFile(path); tandem.KindOf(err) != tandem.Invalid || errors.Is(err, fs.ErrNotExist) ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("file with %q: %v", bad, err)
		}
	}
}

// lines is a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), s)
}

// TestServerConfig serves on a given address, with certificates: they are wanted besides the token, and a role in them.
func TestServerConfig(t *testing.T) {
	dir := t.TempDir()
	ca, err := certtest.NewCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	certificate := func(ca *certtest.CA, name string, roles ...string) *rpc.Certificate {
		cert, key, err := ca.Issue(t.TempDir(), certtest.Options{Names: []string{name}, Roles: roles})
		if err != nil {
			t.Fatal(err)
		}
		i, err := rpc.TLSFiles{Cert: cert, Key: key, CA: ca.File}.Load()
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	server := certificate(ca, "127.0.0.1")
	s, err := ServerConfig{Listen: "127.0.0.1:0", TLS: server.Server(), Secret: secretOf(t, "secret-of-this-pool")}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	access := s.Access()
	if !strings.HasPrefix(access.URL, "tls://127.0.0.1:") || len(access.Token) < 16 {
		t.Errorf("access %+v: want a tls:// URL and a token", access)
	}
	friend := certificate(ca, "friend", "drafter")
	access.Certificate = friend
	p := newPublisher(t, PublisherConfig{Config: Config{Access: access}})
	testkit.Eventually(t, "a friend is not let in", p.Connected)

	other, err := certtest.NewCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string][]nats.Option{
		"another CA":        {nats.Secure(certificate(other, "127.0.0.1", "drafter").Client()), nats.Token(access.Token)},
		"no certificate":    {nats.RootCAs(ca.File), nats.Token(access.Token)},
		"no TLS":            {nats.Token(access.Token)},
		"no token":          {nats.Secure(friend.Client())},
		"an empty token":    {nats.Secure(friend.Client()), nats.Token("")},
		"a wrong token":     {nats.Secure(friend.Client()), nats.Token(access.Token + "x")},
		"no role":           {nats.Secure(certificate(ca, "client").Client()), nats.Token(access.Token)},
		"the secret itself": {nats.Secure(friend.Client()), nats.Token("secret-of-this-pool")},
		"of another's secret": {nats.Secure(friend.Client()), nats.Token(secretOf(t, "secret-of-another-pool").PoolToken(rpc.Drafter)),
			nats.UserInfo("drafter", "")},
	} {
		url := access.URL
		if name == "no TLS" {
			url = strings.Replace(url, "tls://", "nats://", 1)
		}
		c, err := nats.Connect(url, opts...)
		if err == nil {
			c.Close()
			t.Errorf("%s: was let in", name)
		}
	}
	bySecret := Access{URL: access.URL, Certificate: friend, Role: rpc.Drafter, Secret: secretOf(t, "secret-of-this-pool")}
	testkit.Eventually(t, "a process with the secret is not let in",
		newPublisher(t, PublisherConfig{Config: Config{Access: bySecret}}).Connected)
	var log lines
	bySecret.Secret = secretOf(t, "secret-of-another-pool")
	newPublisher(t, PublisherConfig{Config: Config{Access: bySecret, Log: log.logger()}})
	testkit.Eventually(t, "nobody is told that the server does not let the process in",
		func() bool { return log.count("does not let this process in") == 1 })
	time.Sleep(200 * time.Millisecond) // some attempts
	if n := log.count("does not let"); n != 1 {
		t.Errorf("told %d times: want once", n)
	}
	for _, bad := range []string{"x", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"} {
		if _, err := (ServerConfig{Listen: bad}).Start(); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("listening on %q: %v", bad, err)
		}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, err := (ServerConfig{Listen: taken.Addr().String()}).Start(); tandem.KindOf(err) != tandem.Unavailable {
		t.Errorf("listening on a taken address: %v", err)
	}
}

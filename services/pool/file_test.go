package pool

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/rpc/certtest"
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
	if err := p.Put(context.Background(), ticket(1, chain(2))); tandem.KindOf(err) != tandem.Unavailable || !strings.Contains(err.Error(), path) {
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
		eventually(t, "not connected to the server that the file names", p.Connected)
		if err := p.Put(context.Background(), ticket(1, chain(2))); tandem.KindOf(err) != tandem.Unavailable || !strings.Contains(err.Error(), "no verifier") {
			t.Errorf("put with a server and no verifier: %v", err)
		}
		if a, err := FromFile(path); err != nil || a.URL != s.Access().URL || a.Token != "" {
			t.Errorf("the file holds %+v, %v", a, err)
		}
		s.Close()
		eventually(t, "the loss is not noticed", func() bool { return !p.Connected() })
	}
	for _, bad := range []string{"", "x", "nats://", "nats://host", "http://host:1", "nats://secret@:1"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := FromFile(path); tandem.KindOf(err) != tandem.Invalid || errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "secret") {
			t.Errorf("file with %q: %v", bad, err)
		}
	}
}

// TestServerConfig serves on a given address, with certificates in place of a token.
func TestServerConfig(t *testing.T) {
	dir := t.TempDir()
	ca, err := certtest.NewCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	identity := func(ca *certtest.CA, name string) *rpc.Identity {
		cert, key, err := ca.Issue(t.TempDir(), certtest.Options{Names: []string{name}})
		if err != nil {
			t.Fatal(err)
		}
		i, err := rpc.TLSFiles{Cert: cert, Key: key, CA: ca.File}.Load()
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	server := identity(ca, "127.0.0.1")
	s, err := ServerConfig{Listen: "127.0.0.1:0", TLS: server.Server()}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	access := s.Access()
	if !strings.HasPrefix(access.URL, "tls://127.0.0.1:") || access.Token != "" {
		t.Errorf("access %+v: want a tls:// URL without a token", access)
	}
	access.TLS = identity(ca, "friend").Client()
	p := newPublisher(t, PublisherConfig{Config: Config{Access: access}})
	eventually(t, "a friend is not let in", p.Connected)

	other, err := certtest.NewCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string][]nats.Option{
		"another CA":     {nats.Secure(identity(other, "127.0.0.1").Client())},
		"no certificate": {nats.RootCAs(ca.File)},
		"no TLS":         {},
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

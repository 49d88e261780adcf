package pool

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/rpc/certtest"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestRenewedCertificates: tandem's NATS server and its clients use what the files of certificates hold when they connect, without a
// restart; who is connected stays so.
func TestRenewedCertificates(t *testing.T) {
	var both []byte
	var authorities [2]*certtest.CA
	for i := range authorities {
		ca, err := certtest.NewCA(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		pem, err := os.ReadFile(ca.File)
		if err != nil {
			t.Fatal(err)
		}
		authorities[i], both = ca, append(both, pem...)
	}
	trusted := filepath.Join(t.TempDir(), "ca.pem")
	trust := func(pem []byte) {
		t.Helper()
		if err := files.Replace(trusted, pem); err != nil {
			t.Fatal(err)
		}
	}
	issue := func(ca *certtest.CA, dir string, role rpc.Role) rpc.TLSFiles {
		t.Helper()
		cert, key, err := ca.Issue(dir, certtest.Options{Names: []string{"127.0.0.1"}, Roles: []string{string(role)}})
		if err != nil {
			t.Fatal(err)
		}
		return rpc.TLSFiles{Cert: cert, Key: key, CA: trusted}
	}
	load := func(f rpc.TLSFiles) *rpc.Certificate {
		t.Helper()
		c, err := f.Load()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	trust(both[:len(both)/2])
	gateway, drafter := t.TempDir(), t.TempDir()
	serving, drafting := load(issue(authorities[0], gateway, rpc.Gateway)), load(issue(authorities[0], drafter, rpc.Drafter))
	s, err := ServerConfig{TLS: serving.Server()}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	access := s.Access()
	access.Role, access.Certificate = rpc.Drafter, drafting
	first := newPublisher(t, PublisherConfig{Config: Config{Access: access}})
	testkit.Eventually(t, "a drafter is let in", first.Connected)

	one, err := os.ReadFile(authorities[1].File)
	if err != nil {
		t.Fatal(err)
	}
	trust(append(one, both...))
	issue(authorities[1], gateway, rpc.Gateway)
	testkit.Eventually(t, "a drafter of the old authority is let in by a server of the new one",
		newPublisher(t, PublisherConfig{Config: Config{Access: access}}).Connected)
	issue(authorities[1], drafter, rpc.Drafter)
	trust(one)
	again := newPublisher(t, PublisherConfig{Config: Config{Access: access}})
	testkit.Eventually(t, "a drafter of the new authority is let in", again.Connected)
	if !first.Connected() {
		t.Error("the connection that was there has ended")
	}
	stale := access
	trust(both)
	stale.Certificate = load(issue(authorities[0], t.TempDir(), rpc.Drafter))
	trust(one)
	if _, err := connected(t, stale); err == nil {
		t.Error("a drafter of the old authority is let in when that is trusted no longer")
	}
}

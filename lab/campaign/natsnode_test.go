package campaign

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/rpc/certtest"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestNodes: in a cluster of three, a group's messages reach the group at every server and no other group, JetStream keeps what one of them
// wrote when a server is gone, and nobody gets in without a secret.
func TestNodes(t *testing.T) {
	dir := t.TempDir()
	ca, err := certtest.NewCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := rpc.TLSFiles{CA: ca.File}
	if files.Cert, files.Key, err = ca.Issue(dir, certtest.Options{Names: []string{"127.0.0.1"}, Roles: []string{Drafter}}); err != nil {
		t.Fatal(err)
	}
	var secrets []string
	for _, s := range []string{"first-secret-of-the-test", "second-secret-of-the-test"} {
		path := filepath.Join(dir, s)
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, path)
	}
	listen, routes := free(t, 3), free(t, 3)
	stops := startNodes(t, dir, files, secrets, listen, routes)
	connect := func(server int, secret string) (*nats.Conn, error) {
		cert, err := files.Load()
		if err != nil {
			t.Fatal(err)
		}
		var token string
		if secret != "" {
			s, err := rpc.OpenSecret(secret, nil)
			if err != nil {
				t.Fatal(err)
			}
			token = s.PoolToken(rpc.Gateway)
		}
		return nats.Connect("tls://"+listen[server], nats.Token(token), nats.UserInfo(string(rpc.Gateway), ""),
			nats.Secure(cert.Client()), nats.Timeout(10*time.Second))
	}
	if c, err := connect(0, ""); err == nil {
		c.Close()
		t.Error("a client without a secret was let in")
	}
	var conns []*nats.Conn
	heard := [3]chan string{}
	for i, secret := range []string{secrets[0], secrets[0], secrets[1]} {
		c, err := connect(i, secret)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		heard[i] = make(chan string, 100)
		if _, err := c.Subscribe("news", func(m *nats.Msg) { heard[i] <- string(m.Data) }); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	testkit.Eventually(t, "a message at another server", func() bool {
		_ = conns[0].Publish("news", []byte("x"))
		return len(heard[1]) > 0
	})
	if err := conns[2].FlushTimeout(5 * time.Second); err != nil || len(heard[2]) > 0 {
		t.Errorf("error %v, and %d messages of the other group: want none", err, len(heard[2]))
	}
	keeps(t, conns[1], stops[0])
}

// keeps writes into a bucket that all servers hold, stops one, and wants to read what was written.
func keeps(t *testing.T, c *nats.Conn, stop func()) {
	t.Helper()
	js, err := c.JetStream(nats.MaxWait(2 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	var bucket nats.KeyValue
	testkit.Eventually(t, "a bucket", func() bool {
		bucket, err = js.CreateKeyValue(&nats.KeyValueConfig{Bucket: "b", Replicas: 3, Storage: nats.MemoryStorage})
		return err == nil
	})
	if _, err := bucket.PutString("key", "value"); err != nil {
		t.Fatal(err)
	}
	stop()
	testkit.Eventually(t, "the value after a server has gone", func() bool {
		e, err := bucket.Get("key")
		return err == nil && string(e.Value()) == "value"
	})
}

// free returns addresses at which nobody listens.
func free(t *testing.T, n int) (out []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out
}

// startNodes starts a cluster, and returns what stops each server.
func startNodes(t *testing.T, dir string, files rpc.TLSFiles, secrets, listen, routes []string) (stops []func()) {
	t.Helper()
	for i, name := range []string{"n1", "n2", "n3"} {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		go func() {
			ended <- Node{Name: name, Store: filepath.Join(dir, name), Listen: listen[i], Cluster: routes[i], Routes: routes,
				Secrets: secrets, TLS: files, Ready: w}.Run(ctx)
		}()
		over := false
		stop := func() {
			cancel()
			if !over {
				over = true
				if err := <-ended; err != nil {
					t.Errorf("server %s: %v", name, err)
				}
			}
		}
		t.Cleanup(stop)
		stops = append(stops, stop)
		if _, err := r.Read(make([]byte, 1)); err != nil {
			t.Fatalf("server %s is not ready: %v", name, err)
		}
	}
	return stops
}

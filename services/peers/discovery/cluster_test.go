package discovery

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/test/testkit"
)

// startCluster starts three NATS servers with JetStream that know each other.
func startCluster(t *testing.T) (all []*server.Server, access pool.Access) {
	t.Helper()
	var routes []*url.URL
	var ports []int
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
		l.Close()
	}
	var urls []string
	for i := range 3 {
		s, err := server.NewServer(&server.Options{ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true,
			NoSigs: true, JetStream: true, StoreDir: t.TempDir(), JetStreamMaxMemory: 1 << 20, JetStreamMaxStore: 1 << 20, Routes: routes,
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: ports[i]}})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		if !s.ReadyForConnections(30 * time.Second) {
			t.Fatal("a server does not start")
		}
		all, urls = append(all, s), append(urls, s.ClientURL())
	}
	return all, pool.Access{URL: strings.Join(urls, ",")}
}

// TestCluster: three servers keep three replicas, and the registry survives one of them.
func TestCluster(t *testing.T) {
	servers, access := startCluster(t)
	cfg := pool.Config{Access: access}
	a := startMember(t, cfg, "unix://"+filepath.Join(t.TempDir(), "a"))
	v := leased(t, cfg, nil)
	v.until(t, "found", one(up))
	kv, _ := openRegistry(t, cfg)
	testkit.Eventually(t, "it is in the registry", func() bool { return keys(kv) == 1 })
	status, err := kv.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := status.(*jetstream.KeyValueBucketStatus).StreamInfo().Config.Replicas; n != 3 {
		t.Errorf("%d replicas: want 3", n)
	}
	servers[0].Shutdown()
	v.beats(t, int64(2*lease/beat))
	v.until(t, "still there", one(func(p Process) bool { return up(p) && p.Instance == a.What().Instance }))
	kv, _ = openRegistry(t, cfg) // by one of the servers that are left
	testkit.Eventually(t, "its key is renewed", func() bool { return keys(kv) == 1 })
}

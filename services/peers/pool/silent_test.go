package pool

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestSilentConnectionsAtThePool: a process without a token that opens connections without end and says nothing gets a bounded number of
// them, and keeps nobody out: who is connected goes on, and who comes is let in.
func TestSilentConnectionsAtThePool(t *testing.T) {
	if rpc.Files() < 6*mostConnections {
		t.Skipf("this process may have %d files open: want %d", rpc.Files(), 6*mostConnections)
	}
	s, err := StartServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	a := s.Access()
	old, err := connected(t, a)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Subscribe("_INBOX.x", func(m *nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	var opened atomic.Int64
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		var all []net.Conn
		defer func() {
			for _, c := range all {
				_ = c.Close()
			}
		}()
		for {
			select {
			case <-stop:
				return
			default:
			}
			c, err := net.DialTimeout("tcp", strings.TrimPrefix(a.URL, "nats://"), time.Second)
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			opened.Add(1)
			if all = append(all, c); len(all) > 2*mostConnections {
				_ = all[0].Close()
				all = all[1:]
			}
		}
	}()
	defer func() { close(stop); <-done }()
	most := 0
	testkit.Eventually(t, "many connections", func() bool {
		most = max(most, s.nats.NumClients())
		return opened.Load() > 4*mostConnections
	})
	if most > mostConnections {
		t.Errorf("%d clients at once: want at most %d", most, mostConnections)
	}
	for range 5 {
		if err := old.FlushTimeout(5 * time.Second); err != nil {
			t.Errorf("one that is connected: %v", err)
		}
		var c *nats.Conn
		testkit.Eventually(t, "a new one is let in", func() bool {
			c, err = connected(t, a)
			return err == nil
		})
		c.Close()
	}
}

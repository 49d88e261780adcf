package discovery

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestRecordedAnnouncements: what a process has announced with the secret's proof is not believed again once it is gone, neither by the
// table that knew it nor by one that starts later, however often it is sent; a living process is believed by both at once.
func TestRecordedAnnouncements(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a-secret-of-this-test"), 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := rpc.OpenSecret(secret, nil)
	if err != nil {
		t.Fatal(err)
	}
	with := &rpc.Credentials{Secret: own}
	var mu sync.Mutex
	var recorded [][]byte
	thief, err := p.Connect("thief", func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer thief.Close()
	sub, err := thief.Subscribe(p.Subject(Drafters.subject), func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		recorded = append(recorded, m.Data)
	})
	if err != nil {
		t.Fatal(err)
	}
	table := func() (*Table, *tandem.Counters) {
		t.Helper()
		counters := new(tandem.Counters)
		x, err := NewTable(TableConfig{Pool: p, Beat: beat, Counters: counters, Dial: with.Dialer(""), Vouch: with.Vouch})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(x.Close)
		return x, counters
	}
	announce := func(addr string) *Announcer {
		t.Helper()
		a, err := Announce(AnnouncerConfig{Pool: p, Beat: beat, Sign: with.Sign,
			What: wire.Announcement{Addr: addr, Drafters: []wire.AnnouncedDrafter{{Name: "lookup"}}}})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	has := func(x *Table, addr string) bool {
		return slices.ContainsFunc(x.Processes(), func(p Process) bool { return p.Addr == addr })
	}

	first, _ := table()
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes the address's place; nothing is served there yet
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	a := announce(addr)
	testkit.Eventually(t, "it is found", func() bool { return has(first, addr) })
	a.Close()
	testkit.Eventually(t, "it is gone", func() bool { return !has(first, addr) })
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}

	trap, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skipf("the port was taken meanwhile: %v", err)
	}
	defer trap.Close()
	called := make(chan struct{}, 100)
	go func() {
		for {
			c, err := trap.Accept()
			if err != nil {
				return
			}
			called <- struct{}{}
			_ = c.Close()
		}
	}()
	second, counters := table()
	living := announce("127.0.0.1:9")
	defer living.Close()
	for range 1000 {
		if second.looks.Load() >= 20 && counters.Snapshot()["announcements.unasked"] >= 10 {
			break
		}
		mu.Lock()
		for _, m := range recorded {
			if err := thief.Publish(p.Subject(Drafters.subject), m); err != nil {
				t.Fatal(err)
			}
		}
		mu.Unlock()
		seen := second.looks.Load()
		testkit.Eventually(t, "the table looks again", func() bool { return second.looks.Load() > seen })
	}
	if len(called) > 0 || has(first, addr) || has(second, addr) {
		t.Errorf("called %d times; %+v, %+v", len(called), first.Processes(), second.Processes())
	}
	testkit.Eventually(t, "a living one is found by both", func() bool { return has(first, "127.0.0.1:9") && has(second, "127.0.0.1:9") })
}

// TestManyAsk: an announcement has the latest numbers alone, each once, so that it stays small, and always the one that was asked last.
func TestManyAsk(t *testing.T) {
	a := &Announcer{asked: []uint64{0}, poke: make(chan struct{}, 1), due: make(chan struct{}, 1)}
	for i := range uint64(1000) {
		for _, n := range []uint64{i + 1, i/2 + 1} {
			a.answer(&nats.Msg{Data: []byte{byte(n), byte(n >> 8), 0, 0, 0, 0, 0, 0}})
			sorted := slices.Sorted(slices.Values(a.asked))
			if last := len(a.asked) - 1; last >= wire.MostAsked || a.asked[0] != 0 || a.asked[last] != n ||
				len(slices.Compact(sorted)) != len(a.asked) {
				t.Fatalf("after %d: %v", n, a.asked)
			}
		}
	}
	for _, bad := range [][]byte{nil, {1}, make([]byte, 8), make([]byte, 9)} {
		before := a.asked
		if a.answer(&nats.Msg{Data: bad}); !slices.Equal(a.asked, before) {
			t.Errorf("after % x: %v", bad, a.asked)
		}
	}
}

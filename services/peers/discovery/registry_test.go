package discovery

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/test/testkit"
)

// lease is that of the tests: long beside a pause of a busy machine.
const lease = 1500 * time.Millisecond

// movable is a pool whose server may be another one each time; processes find it by a file.
type movable struct {
	t      *testing.T
	file   string
	server *pool.Server
	cfg    pool.Config
}

func startMovable(t *testing.T, store string) *movable {
	m := &movable{t: t, file: filepath.Join(t.TempDir(), "pool")}
	m.start(store)
	access, err := pool.FromFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	m.cfg = pool.Config{Access: access}
	t.Cleanup(func() { m.server.Close() })
	return m
}

// start replaces the server by one with that store.
func (m *movable) start(store string) {
	m.t.Helper()
	if m.server != nil {
		m.server.Close()
	}
	var err error
	if m.server, err = (pool.ServerConfig{Store: store, Lease: lease}).Start(); err != nil {
		m.t.Fatal(err)
	}
	a := m.server.Access()
	if err := os.WriteFile(m.file, []byte(strings.Replace(a.URL, "://", "://"+a.Token+"@", 1)), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// bucket returns the registry, once it is there.
func (m *movable) bucket() jetstream.KeyValue {
	m.t.Helper()
	kv, _ := openRegistry(m.t, m.cfg)
	return kv
}

// openRegistry returns a pool's registry, once it is there, and a function that sends an entry as processes do; none removes it.
func openRegistry(t *testing.T, cfg pool.Config) (kv jetstream.KeyValue, put func(key string, value []byte)) {
	t.Helper()
	conn, err := cfg.Connect("test", func() {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	testkit.Eventually(t, "the registry is there", func() bool {
		var end func()
		if kv, end, err = (registry{cfg, conn, lease}).open(t.Context()); err == nil {
			t.Cleanup(end)
		}
		return err == nil
	})
	return kv, func(key string, value []byte) {
		t.Helper()
		m := nats.NewMsg(cfg.RegistryKey(key))
		if m.Data = value; value == nil {
			m.Header.Set(operation, remove)
		}
		if err := conn.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
}

// keys returns how many processes are in a registry.
func keys(kv jetstream.KeyValue) int {
	all, err := kv.Keys(context.Background())
	if err != nil {
		return 0
	}
	return len(all)
}

// member is a process of the tests that is in the registry. It can be stopped, as by SIGSTOP, and goes on as the same process.
type member struct {
	*Announcer
	mu   sync.Mutex // held while it is stopped
	kill func()     // ends its server; its key stays
	end  func()     // ends its announcements
}

func startMember(t *testing.T, p pool.Config, addr string) *member {
	t.Helper()
	m := new(member)
	s := startVerifier(t, nil, addr, "")
	var err error
	m.Announcer, err = Announce(AnnouncerConfig{Pool: p, Beat: beat, Lease: lease,
		What: wire.Announcement{Addr: addr, Verifier: facts()},
		Load: func(*wire.Announcement) {
			m.mu.Lock()
			defer m.mu.Unlock()
		}})
	if err != nil {
		t.Fatal(err)
	}
	m.end = sync.OnceFunc(m.Close)
	t.Cleanup(m.end)
	m.kill = func() {
		s.kill()
		m.mu.Lock()
		t.Cleanup(m.mu.Unlock) // before its announcer is closed
	}
	return m
}

// leased is a table of verifiers with the lease of the tests.
func leased(t *testing.T, p pool.Config, vouch func(string, []byte, string) error) *view {
	t.Helper()
	v := &view{counters: new(tandem.Counters)}
	var err error
	v.table, err = NewTable(TableConfig{Pool: p, Kind: Verifiers, Beat: beat, Lease: lease, Counters: v.counters, Vouch: vouch,
		Changed: func(all []Process) {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.processes = all
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.table.Close)
	return v
}

func up(p Process) bool { return p.Up && !p.Lapsed && p.Verifier != nil }

// TestRegistry: a process is in the registry while it lives. One that is killed stays until its lease ends, one that ends does not, and one
// that is stopped for longer comes back as the process that it was.
func TestRegistry(t *testing.T) {
	m := startMovable(t, pool.InMemory)
	dir := t.TempDir()
	a := startMember(t, m.cfg, "unix://"+filepath.Join(dir, "a"))
	b := startMember(t, m.cfg, "unix://"+filepath.Join(dir, "b"))
	kv := m.bucket()
	testkit.Eventually(t, "both are in the registry", func() bool { return keys(kv) == 2 })
	if s, err := kv.Status(t.Context()); err != nil || s.TTL() != lease || s.BackingStore() != "JetStream" {
		t.Errorf("registry %+v, %v: want keys that last %v", s, err, lease)
	}
	v := leased(t, m.cfg, nil)
	both := func(all []Process) bool { return len(all) == 2 && up(all[0]) && up(all[1]) }
	v.until(t, "both are found", both)

	a.mu.Lock()
	stopped := time.Now()
	was := v.now()[0]
	v.until(t, "one is stopped", func(all []Process) bool { return len(all) == 2 && all[0].Lapsed && all[0].Up && up(all[1]) })
	if d := time.Since(stopped); d < lease/2 {
		t.Errorf("it lapsed after %v: want a lease, %v", d, lease)
	}
	testkit.Eventually(t, "its key has ended", func() bool { return keys(kv) == 1 })
	a.mu.Unlock()
	v.until(t, "it goes on", both)
	if is := v.now()[0]; is.Instance != was.Instance || is.Conn != was.Conn {
		t.Errorf("it went on as %+v: want %+v", is, was)
	}
	testkit.Eventually(t, "its key is there again", func() bool { return keys(kv) == 2 })

	killed := time.Now()
	a.kill()
	v.until(t, "one is killed", func(all []Process) bool { return len(all) == 2 && !all[0].Up })
	v.until(t, "its lease has ended", one(up))
	if d := time.Since(killed); d < lease/2 {
		t.Errorf("it was forgotten after %v: want a lease, %v", d, lease)
	}
	b.end()
	testkit.Eventually(t, "one that ends takes its key away", func() bool { return keys(kv) == 0 })
	if n := v.counters.Snapshot(); n["announcements.garbage"]+n["announcements.refused"] > 0 {
		t.Errorf("counted %v", n)
	}
}

// TestRegistryAlone: a process of which nothing is heard but what is in the registry is found.
func TestRegistryAlone(t *testing.T) {
	m := startMovable(t, t.TempDir()) // a store on disk serves as well
	addr := "unix://" + filepath.Join(t.TempDir(), "a")
	startVerifier(t, nil, addr, "")
	_, send := openRegistry(t, m.cfg)
	sequence := uint64(0)
	put := func() {
		sequence++
		b, err := wire.Announcement{Instance: 5, Sequence: sequence, Addr: addr, Verifier: facts()}.Marshal(nil)
		if err != nil {
			t.Fatal(err)
		}
		send(Verifiers.key(addr), b)
	}
	put()
	v := leased(t, m.cfg, nil)
	v.until(t, "found", one(up))
	for range 3 {
		v.beats(t, int64(lease/2/beat))
		put()
	}
	v.until(t, "renewed", one(up))
	send(Verifiers.key(addr), nil)
	v.until(t, "lapsed with its key", one(func(p Process) bool { return p.Lapsed && p.Up }))
}

// TestServersOfBothKinds: the pool's server is replaced by one without a registry, and by one with an empty one, while processes live;
// none is lost.
func TestServersOfBothKinds(t *testing.T) {
	m := startMovable(t, "")
	dir := t.TempDir()
	startMember(t, m.cfg, "unix://"+filepath.Join(dir, "a"))
	v := leased(t, m.cfg, nil)
	v.until(t, "found by its announcements", one(up))
	lost := 0
	check := func(what string) {
		t.Helper()
		for range (lease + lease/4) / beat {
			if v.beats(t, 1); !one(func(p Process) bool { return p.Up })(v.table.Processes()) {
				lost++
			}
		}
		if lost > 0 {
			t.Errorf("%s: lost for %d of the looks", what, lost)
		}
	}
	for _, store := range []string{pool.InMemory, "", pool.InMemory, pool.InMemory} {
		watches := v.counters.Snapshot()["registry.watches"]
		m.start(store)
		if store != "" {
			kv := m.bucket()
			testkit.Eventually(t, "it is in the new registry", func() bool { return keys(kv) == 1 })
			testkit.Eventually(t, "which is watched", func() bool { return v.counters.Snapshot()["registry.watches"] > watches })
		}
		check("with store " + store)
	}
}

// TestGarbageInTheRegistry: what is no announcement, has another's key, is of another kind or protocol, or is not proved, is not used.
func TestGarbageInTheRegistry(t *testing.T) {
	m := startMovable(t, pool.InMemory)
	dir := t.TempDir()
	_, put := openRegistry(t, m.cfg)
	at := func(name string) string { return "unix://" + filepath.Join(dir, name) }
	message := func(a wire.Announcement) []byte {
		t.Helper()
		a.Instance, a.Sequence = 5, 1
		b, err := a.Marshal(func([]byte) string { return "proof of " + a.Addr })
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var old peerv1.Announcement
	if err := proto.Unmarshal(message(wire.Announcement{Addr: at("old"), Verifier: facts()}), &old); err != nil {
		t.Fatal(err)
	}
	old.Protocol = tandem.Protocol + 1
	other, err := proto.Marshal(&old)
	if err != nil {
		t.Fatal(err)
	}
	nonsense := facts()
	nonsense.Vocab = 1
	put("verifiers.garbage", []byte("\xff"))
	put("verifiers.huge", make([]byte, 64<<10))
	put(Verifiers.key(at("victim")), message(wire.Announcement{Addr: at("thief"), Verifier: facts()}))
	put(Verifiers.key(at("d")), message(wire.Announcement{Addr: at("d"), Drafters: []wire.AnnouncedDrafter{{Name: "d"}}}))
	put(Verifiers.key(at("old")), other)
	put(Verifiers.key(at("nonsense")), message(wire.Announcement{Addr: at("nonsense"), Verifier: nonsense}))
	put(Verifiers.key(at("unproved")), message(wire.Announcement{Addr: at("unproved"), Verifier: facts()}))
	put(Drafters.key(at("d")), message(wire.Announcement{Addr: at("d"), Drafters: []wire.AnnouncedDrafter{{Name: "d"}}}))
	startMember(t, m.cfg, at("good"))
	v := leased(t, m.cfg, func(addr string, _ []byte, proof string) error {
		if strings.HasSuffix(addr, "good") {
			return nil
		}
		if addr == at("unproved") || proof == "" {
			return tandem.Errorf("test", tandem.Unauthenticated, "not proved")
		}
		return nil
	})
	v.until(t, "the good one", one(func(p Process) bool { return up(p) && p.Addr == at("good") }))
	testkit.Eventually(t, "all else is counted", func() bool {
		n := v.counters.Snapshot()
		return n["announcements.garbage"] >= 4 && n["announcements.refused"] >= 2 && n["refused.protocol"] == 1
	})
	if all := v.now(); len(all) != 1 {
		t.Errorf("the table has %+v", all)
	}
}

// TestStores: a server whose folder cannot be written, or can be by others, does not start, and says what would be right; one in memory has
// nothing on the disk while it runs, so that a process which is killed leaves nothing, and its registry works all the same.
func TestStores(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := pool.ServerConfig{Store: file}.Start()
	if !errors.Is(err, tandem.Invalid) || !strings.Contains(err.Error(), "want a folder") {
		t.Errorf("a file as the store: %v", err)
	}
	open := filepath.Join(t.TempDir(), "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{open, filepath.Join(open, "below")} {
		if _, err := (pool.ServerConfig{Store: dir}).Start(); !errors.Is(err, tandem.Invalid) || !strings.Contains(err.Error(), "0777") {
			t.Errorf("%s as the store: %v: want it refused", dir, err)
		}
	}
	t.Setenv("TMPDIR", t.TempDir())
	m := startMovable(t, pool.InMemory)
	startMember(t, m.cfg, "unix://"+filepath.Join(t.TempDir(), "a"))
	kv := m.bucket()
	testkit.Eventually(t, "it is in the registry", func() bool { return keys(kv) == 1 })
	for range 2 { // before it has ended, and after
		if left, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "tandem-*")); err != nil || len(left) > 0 {
			t.Errorf("on the disk are %v, %v", left, err)
		}
		m.server.Close()
	}
}

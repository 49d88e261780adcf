package discovery

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/drafting"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/trees"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const beat = 20 * time.Millisecond

// still is a drafter that does nothing.
type still struct{}

func (still) Open(context.Context, tandem.Opening) (tandem.Opened, error) {
	return tandem.Opened{}, nil
}
func (still) Close(context.Context, tandem.SessionID) error { return nil }
func (still) Propose(context.Context, tandem.Proposal) (tandem.Proposed, error) {
	return tandem.Proposed{Nodes: 1}, nil
}

// process is a drafter process: a server, a segment, and an announcer unless it is silent.
type process struct {
	addr      string
	segment   *shm.Segment
	announcer *Announcer
	kill      func() // ends it; safe to call twice
}

func startProcess(t *testing.T, p pool.Config, addr string, silent bool, names ...string) *process {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	x := &process{addr: addr}
	var err error
	x.segment, err = shm.New(shm.SegmentConfig{Slots: 4})
	must(err)
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: addr, Grace: time.Millisecond})
	must(err)
	cfg := drafting.ServerConfig{Trees: trees.NewWriter(x.segment, 0, new(tandem.Counters))}
	socket := ""
	if path, isUnix := strings.CutPrefix(addr, "unix://"); isUnix && !silent { // the silent one passes nothing out
		socket = path + "-shm"
		l, err := rpc.Listen("unix://" + socket)
		must(err)
		must(x.segment.Serve(l))
	}
	var told []wire.AnnouncedDrafter
	for _, name := range names {
		cfg.Drafters = append(cfg.Drafters, drafting.Named{Name: name, Drafter: still{},
			Describe: func() tandem.Description {
				return tandem.Description{Model: "m", Vocab: 9, Fingerprint: "f", SegmentSocket: socket}
			}})
		told = append(told, wire.AnnouncedDrafter{Name: name, Model: "m", Vocab: 9, Fingerprint: "f"})
	}
	drafting.Register(s.Registrar(), cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	if !silent {
		x.announcer, err = Announce(AnnouncerConfig{Pool: p,
			What: wire.Announcement{Addr: addr, Drafters: told, Segment: x.segment.ID()}, Beat: beat})
		must(err)
	}
	x.kill = sync.OnceFunc(func() {
		if x.announcer != nil {
			x.announcer.Close()
		}
		cancel()
		work.Wait()
		_ = x.segment.Close()
	})
	t.Cleanup(x.kill)
	return x
}

// view is what a table says.
type view struct {
	table     *Table
	counters  *tandem.Counters
	mu        sync.Mutex
	processes []Process
}

func watch(t *testing.T, p pool.Config, also func([]Process), static ...string) *view {
	t.Helper()
	v := &view{counters: new(tandem.Counters)}
	var err error
	v.table, err = NewTable(TableConfig{Pool: p, Static: static, Beat: beat, Counters: v.counters, Changed: func(processes []Process) {
		if also != nil {
			also(processes)
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.processes = processes
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.table.Close)
	return v
}

func (v *view) now() []Process {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.processes
}

// until waits for a view that is as it should be.
func (v *view) until(t *testing.T, what string, good func([]Process) bool) {
	t.Helper()
	if !testkit.Until(func() bool { return good(v.now()) }) {
		t.Fatalf("%s: table has %+v, counters %v", what, v.now(), v.counters.Snapshot())
	}
}

// beats waits until the table has looked n times more at what it has.
func (v *view) beats(t *testing.T, n int64) {
	t.Helper()
	n += v.table.looks.Load()
	testkit.Eventually(t, "the table looks again", func() bool { return v.table.looks.Load() > n })
}

// names returns the drafters that may be used.
func names(processes []Process) (out []string) {
	for _, p := range processes {
		for _, d := range p.Drafters {
			if p.Up && !p.Draining {
				out = append(out, d.Name)
			}
		}
	}
	slices.Sort(out)
	return out
}

func drafters(want ...string) func([]Process) bool {
	return func(processes []Process) bool { return slices.Equal(names(processes), want) }
}

func start(t *testing.T) (pool.Config, *pool.Server) {
	t.Helper()
	s, err := pool.StartServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return pool.Config{Access: s.Access()}, s
}

func TestProcessesComeAndGo(t *testing.T) {
	cfg, _ := start(t)
	dir := t.TempDir()
	at := func(name string) string { return "unix://" + filepath.Join(dir, name) }
	a := startProcess(t, cfg, at("a"), false, "go", "py")
	v := watch(t, cfg, nil)
	v.until(t, "who was there first is found", drafters("go", "py"))
	b := startProcess(t, cfg, at("b"), false, "go")
	v.until(t, "who comes later is found", drafters("go", "go", "py"))

	b.announcer.Drain(false)
	v.until(t, "who drains takes no rounds", drafters("go", "py"))
	b.kill()
	v.until(t, "who has drained is gone", func(p []Process) bool { return len(p) == 1 })

	first := v.now()[0].Instance
	a.kill()
	v.until(t, "who died cannot be used", drafters())
	startProcess(t, cfg, at("a"), false, "go", "prose")
	v.until(t, "who came back is used again", drafters("go", "prose"))
	if p := v.now(); len(p) != 1 || p[0].Instance == first {
		t.Errorf("after a restart the table has %+v", p)
	}
}

func TestWhoIsKilledIsGoneAfterThreeBeats(t *testing.T) {
	cfg, _ := start(t)
	a := startProcess(t, cfg, "unix://"+filepath.Join(t.TempDir(), "a"), false, "go")
	v := watch(t, cfg, nil)
	v.until(t, "found", drafters("go"))
	a.announcer.Close() // silent, but reachable
	v.beats(t, 6)
	if p := v.now(); len(p) != 1 || !p[0].Up {
		t.Fatalf("a process that can be reached was given up: %+v", p)
	}
	a.announcer = nil
	a.kill()
	v.until(t, "gone", func(p []Process) bool { return len(p) == 0 })
}

func TestConfiguredProcessesNeedNoAnnouncement(t *testing.T) {
	cfg, _ := start(t)
	addr := "unix://" + filepath.Join(t.TempDir(), "a")
	v := watch(t, cfg, nil, addr)
	v.until(t, "not there yet", func(p []Process) bool { return len(p) == 1 && !p[0].Up })
	a := startProcess(t, cfg, addr, true, "go", "lookup")
	v.until(t, "describes itself", drafters("go", "lookup"))
	if d := v.now()[0].Drafters[0]; !d.Equal(wire.AnnouncedDrafter{Name: "go", Model: "m", Vocab: 9, Fingerprint: "f"}) {
		t.Errorf("told %+v", d)
	}
	a.kill()
	v.until(t, "down", drafters())
	v.beats(t, 5)
	if p := v.now(); len(p) != 1 {
		t.Fatalf("a configured process was forgotten: %+v", p)
	}
	startProcess(t, cfg, addr, true, "py")
	v.until(t, "back with another model", drafters("py"))
}

func TestTheTableStaysWhileNATSIsAway(t *testing.T) {
	cfg, server := start(t)
	addr := "unix://" + filepath.Join(t.TempDir(), "a")
	a := startProcess(t, cfg, addr, false, "go")
	v := watch(t, cfg, nil)
	v.until(t, "found", drafters("go"))
	server.Close()
	v.beats(t, 8)
	if !drafters("go")(v.now()) {
		t.Fatalf("without NATS the table has %+v", v.now())
	}
	a.kill()
	v.until(t, "without NATS the connection decides: down", drafters())
	v.beats(t, 8)
	if len(v.now()) != 1 {
		t.Fatalf("without NATS the process was forgotten: %+v", v.now())
	}
	startProcess(t, cfg, addr, false, "go")
	v.until(t, "without NATS the connection decides: up", drafters("go"))
}

func TestGarbageIsCountedAndIgnored(t *testing.T) {
	cfg, _ := start(t)
	nc, err := cfg.Connect("vandal", func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	asked := make(chan struct{}, 1)
	if _, err := nc.Subscribe(cfg.Subject(Drafters.ask()), func(*nats.Msg) { asked <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	if err := nc.FlushTimeout(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	v := watch(t, cfg, nil)
	select {
	case <-asked: // the server had the table's subscription before this question: it hears what is said from now on
	case <-time.After(30 * time.Second):
		t.Fatal("the table did not ask who is there")
	}
	say := func(a wire.Announcement) {
		data, err := a.Marshal(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Publish(cfg.Subject(Drafters.subject), data); err != nil {
			t.Fatal(err)
		}
	}
	some := []wire.AnnouncedDrafter{{Name: "x"}}
	_ = nc.Publish(cfg.Subject(Drafters.subject), []byte("\xff"))
	say(wire.Announcement{Instance: 1, Sequence: 1, Addr: "nowhere", Drafters: some})
	say(wire.Announcement{Instance: 1, Sequence: 2, Addr: "nowhere", Drafters: some})
	for i := range maxProcesses + 3 {
		say(wire.Announcement{Instance: uint64(i + 1), Sequence: 1, Addr: "unix://" + filepath.Join("/none", string(rune('A'+i))),
			Drafters: some})
	}
	v.until(t, "garbage", func(p []Process) bool {
		n := v.counters.Snapshot()
		return len(p) <= maxProcesses && n["announcements.garbage"] >= 1 && n["announcements.refused"] >= 2
	})
	v.until(t, "who cannot be reached goes away", func(p []Process) bool { return len(p) == 0 })
	a := startProcess(t, cfg, "unix://"+filepath.Join(t.TempDir(), "a"), false, "go")
	v.until(t, "honest processes are found all the same", drafters("go"))
	now := v.now() // the last of those that cannot be reached may still be among them
	at := now[slices.IndexFunc(now, func(p Process) bool { return p.Addr == a.addr })]
	say(wire.Announcement{Instance: at.Instance, Sequence: 1, Addr: a.addr, Drafters: some}) // an old message, once more
	v.until(t, "stale", func([]Process) bool { return v.counters.Snapshot()["announcements.stale"] > 0 })
	if !drafters("go")(v.now()) {
		t.Errorf("an old announcement changed the table: %+v", v.now())
	}
	if _, err := Announce(AnnouncerConfig{Pool: cfg,
		What: wire.Announcement{Addr: "\xff", Drafters: some}}); !errors.Is(err, tandem.Invalid) {
		t.Errorf("announcing what is not UTF-8: %v", err)
	}
	if _, err := NewTable(TableConfig{Pool: cfg, Static: []string{"nowhere"}}); !errors.Is(err, tandem.Invalid) {
		t.Errorf("a configured address that is none: %v", err)
	}
}

func TestClaimsGoToTheOwner(t *testing.T) {
	cfg, _ := start(t)
	dir := t.TempDir()
	set := new(shm.Set)
	c := NewMemory(shm.Verifier, set)
	silent := startProcess(t, cfg, "unix://"+filepath.Join(dir, "silent"), true, "go")
	v := watch(t, cfg, c.Update, silent.addr)
	// Before the table: its connections are used until Close has returned.
	t.Cleanup(c.Close)
	all := []*process{silent}
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, startProcess(t, cfg, "unix://"+filepath.Join(dir, name), false, "go"))
	}
	v.until(t, "all found", drafters("go", "go", "go", "go"))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i, p := range all {
		h, err := p.segment.Put(shm.Key{}, 0, []byte(p.addr))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.Fetch(ctx, "go", h); err != nil || string(got) != p.addr {
			t.Errorf("process %d: fetched %q, %v", i, got, err)
		}
		if p == silent { // as one on another host
			if _, err := set.Read(h); !errors.Is(err, tandem.Unavailable) {
				t.Errorf("a segment that nobody passes out was read: %v", err)
			}
			continue
		}
		testkit.Eventually(t, "its segment is mapped", func() bool { return p.segment.Readers(shm.Verifier) > 0 })
		if got, err := set.Read(h); err != nil || string(got) != p.addr {
			t.Errorf("process %d: read %q, %v", i, got, err)
		}
		processes := v.now()
		of := c.Of(processes[slices.IndexFunc(processes, func(x Process) bool { return x.Addr == p.addr })].Conn)
		if of.Segment() != p.segment.ID() {
			t.Errorf("process %d: segment %x is mapped for it, want %x", i, of.Segment(), p.segment.ID())
		}
	}
	if _, err := c.Fetch(ctx, "rust", shm.Handle{Segment: 1}); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("an owner that nobody knows: %v: want unavailable", err)
	}
	if _, err := c.Fetch(ctx, "go", shm.Handle{Segment: 1}); !errors.Is(err, tandem.Stale) {
		t.Errorf("a segment that nobody holds: %v: want stale", err)
	}
	// Claims in progress and processes that go away at the same time.
	var work sync.WaitGroup
	for _, p := range all[1:] {
		h, err := p.segment.Put(shm.Key{}, 0, []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			work.Go(func() {
				for range 50 {
					_, _ = c.Fetch(ctx, "go", h)
				}
			})
		}
		work.Go(p.kill)
	}
	work.Wait()
	v.until(t, "gone", drafters("go"))
	h, _ := all[1].segment.Put(shm.Key{}, 0, []byte("x"))
	testkit.Eventually(t, "the segment of a process that is gone is unmapped", func() bool {
		h.Segment = all[1].segment.ID()
		_, err := set.Read(h)
		return errors.Is(err, tandem.Unavailable)
	})
}

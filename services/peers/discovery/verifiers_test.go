package discovery

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/verifying"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/test/testkit"
)

// aim is a verifier that does nothing.
type aim struct {
	tandem.Verifier
	d tandem.Description
}

func (a aim) Describe(context.Context) (tandem.Description, error) {
	d := a.d
	d.Protocol = tandem.Protocol
	return d, nil
}

// verifierProcess is a verifier process in this one.
type verifierProcess struct {
	addr      string
	announcer *Announcer // nil: it does not announce itself
	sessions  atomic.Int64
	kill      func()
}

// facts are what every verifier of the tests announces.
func facts() *wire.AnnouncedVerifier {
	return &wire.AnnouncedVerifier{Model: "m", Version: "v1", Identity: "i-1", Vocab: 9, Fingerprint: "f", KVTokens: 640, PageTokens: 64,
		Costs: []tandem.Cost{{Rows: 1, Context: 1, Time: time.Millisecond}}, Queue: "q"}
}

// startVerifier serves a verifier at addr, which it announces as as; nil: it does not announce itself.
func startVerifier(t *testing.T, p *pool.Config, addr, as string) *verifierProcess {
	t.Helper()
	x := &verifierProcess{addr: addr}
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: addr, Grace: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	cfg := verifying.ServerConfig{Verifier: aim{d: described}}
	if p != nil {
		x.announcer, err = Announce(AnnouncerConfig{Pool: *p, Beat: beat, What: wire.Announcement{Addr: as, Verifier: facts()},
			Load: func(what *wire.Announcement) {
				v := *what.Verifier
				v.Load = wire.VerifierLoad{FreePages: 5, Sessions: int(x.sessions.Load()), Prefixes: []uint64{1, 2}}
				what.Verifier = &v
			}})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Announced = x.announcer.What
	}
	verifying.NewServer(cfg).Register(s.Registrar())
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	x.kill = sync.OnceFunc(func() {
		if x.announcer != nil {
			x.announcer.Close()
		}
		cancel()
		work.Wait()
	})
	t.Cleanup(x.kill)
	return x
}

// described is what the verifiers of the tests say without announcing themselves.
var described = tandem.Description{Model: "m", Version: "v1", Identity: "i-1", Vocab: 9, Fingerprint: "f", KVCapacity: 640,
	PageTokens: 64, Costs: []tandem.Cost{{Rows: 1, Context: 1, Time: time.Millisecond}},
	SelfDrafts: []tandem.SelfDraft{{Name: "medusa", Levels: 1}}, Taps: []int{2}}

// patient is the beat of tables that wait longer than announcers need on a busy machine.
const patient = 10 * beat

// watchKind is watch for another kind. changes counts the calls of Changed.
func watchKind(t *testing.T, p pool.Config, kind Kind, static ...string) (v *view, changes *atomic.Int64) {
	t.Helper()
	v, changes = &view{counters: new(tandem.Counters)}, new(atomic.Int64)
	var err error
	config := TableConfig{Pool: p, Kind: kind, Static: static, Beat: patient, Counters: v.counters}
	config.Changed = func(all []Process) {
		changes.Add(1)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.processes = all
	}
	if v.table, err = NewTable(config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.table.Close)
	return v, changes
}

// one reports whether there is one process, and it is good.
func one(good func(Process) bool) func([]Process) bool {
	return func(all []Process) bool { return len(all) == 1 && good(all[0]) }
}

// TestVerifiersAreFound: with what they announced; a table of drafters does not see them, nor they drafters. Their load alone is no
// change, and Processes tells it.
func TestVerifiersAreFound(t *testing.T) {
	cfg, _ := start(t)
	dir := t.TempDir()
	startProcess(t, cfg, "unix://"+filepath.Join(dir, "drafter"), false, "go")
	d, _ := watchKind(t, cfg, Drafters)
	v, changes := watchKind(t, cfg, Verifiers)
	addr := "unix://" + filepath.Join(dir, "v")
	x := startVerifier(t, &cfg, addr, addr)
	ready := func(p Process) bool {
		return p.Up && !p.Draining && !p.Lapsed && p.Verifier != nil && p.Verifier.Equal(*facts())
	}
	v.until(t, "the verifier", one(ready))
	d.until(t, "the drafter alone", drafters("go"))
	if p := v.now()[0]; p.Instance != x.announcer.What().Instance || p.Conn == nil || p.Addr != addr || time.Until(p.Lease) > 3*patient {
		t.Errorf("the table has %+v", p)
	}
	before := changes.Load()
	x.sessions.Store(7)
	testkit.Eventually(t, "the load comes", func() bool { return v.table.Processes()[0].Verifier.Load.Sessions == 7 })
	if load := v.table.Processes()[0].Verifier.Load; load.FreePages != 5 || len(load.Prefixes) != 2 {
		t.Errorf("the load is %+v", load)
	}
	if n := changes.Load(); n != before {
		t.Errorf("the load made %d changes: want none", n-before)
	}
	x.announcer.Drain(false)
	v.until(t, "draining", one(func(p Process) bool { return p.Up && p.Draining }))
	x.announcer.Drain(true)
	v.until(t, "draining no more", one(ready))
	x.kill()
	v.until(t, "gone", func(all []Process) bool { return len(all) == 0 })
	for name, view := range map[string]*view{"drafters": d, "verifiers": v} {
		if n := view.counters.Snapshot(); n["announcements.garbage"] > 0 || n["announcements.refused"] > 0 {
			t.Errorf("%s: counted %v", name, n)
		}
	}
}

// TestConfiguredVerifiers tell the same without a pool, one of an older release all but its load.
func TestConfiguredVerifiers(t *testing.T) {
	cfg, server := start(t)
	dir := t.TempDir()
	at := "unix://" + filepath.Join(dir, "v")
	x := startVerifier(t, &cfg, at, at)
	server.Close()
	v, _ := watchKind(t, cfg, Verifiers, at)
	v.until(t, "described", one(func(p Process) bool { return p.Up && p.Verifier != nil && p.Verifier.Equal(*facts()) }))
	if p := v.now()[0]; p.Instance != x.announcer.What().Instance || !p.Lease.IsZero() || p.Lapsed {
		t.Errorf("the table has %+v", p)
	}
	x.sessions.Store(3)
	x.announcer.Drain(false)
	v.until(t, "asked again", one(func(p Process) bool { return p.Draining }))
	if n := v.table.Processes()[0].Verifier.Load.Sessions; n != 3 {
		t.Errorf("%d sessions, want 3", n)
	}
	first := v.now()[0].Instance
	x.kill()
	v.until(t, "down", one(func(p Process) bool { return !p.Up }))
	startVerifier(t, &cfg, at, at)
	v.until(t, "another in its place", one(func(p Process) bool { return p.Up && !p.Draining && p.Instance != first }))

	old := "unix://" + filepath.Join(dir, "old")
	startVerifier(t, nil, old, "")
	w, _ := watchKind(t, cfg, Verifiers, old)
	want := *facts()
	want.Queue, want.SelfDrafts, want.Taps = "", []string{"medusa"}, []int{2}
	w.until(t, "an older one", one(func(p Process) bool {
		return p.Up && p.Instance == 0 && p.Verifier != nil && p.Verifier.Equal(want)
	}))
}

// TestOneVerifierOfTwoAddresses: a process that is configured by one address and announces another is there once, by the first at which
// it was reached, with what it announces; and by the other when that fails.
func TestOneVerifierOfTwoAddresses(t *testing.T) {
	cfg, _ := start(t)
	dir := t.TempDir()
	at, link := filepath.Join(dir, "v"), filepath.Join(dir, "link")
	x := startVerifier(t, &cfg, "unix://"+at, "unix://"+at)
	if err := os.Symlink(at, link); err != nil {
		t.Fatal(err)
	}
	v, _ := watchKind(t, cfg, Verifiers, "unix://"+link)
	latest := func(good func(Process) bool) func([]Process) bool {
		return func([]Process) bool { return one(good)(v.table.Processes()) }
	}
	v.until(t, "found", latest(func(p Process) bool { return p.Up && p.Verifier != nil && !p.Lease.IsZero() }))
	p := v.now()[0]
	x.sessions.Store(4)
	x.announcer.Drain(false)
	v.until(t, "what is announced counts", latest(func(p Process) bool { return p.Draining && p.Verifier.Load.Sessions == 4 }))
	if q := v.now()[0]; q.Addr != p.Addr || q.Conn != p.Conn {
		t.Errorf("the address changed from %s to %s without need", p.Addr, q.Addr)
	}
	v.beats(t, 4)
	if all := v.now(); len(all) != 1 {
		t.Fatalf("the table has %+v", all)
	}
	x.kill()
	v.until(t, "gone, but for what is configured", one(func(p Process) bool { return !p.Up && p.Addr == "unix://"+link }))
}

// TestGateways are there while they are heard; nobody calls them.
func TestGateways(t *testing.T) {
	cfg, _ := start(t)
	v, _ := watchKind(t, cfg, Gateways)
	a, err := Announce(AnnouncerConfig{Pool: cfg, Beat: beat, What: wire.Announcement{Addr: "box:8451",
		Gateway: &wire.AnnouncedGateway{Name: "g", Model: "m", HTTP: "box:8080"}}})
	if err != nil {
		t.Fatal(err)
	}
	v.until(t, "found", one(func(p Process) bool { return p.Up && p.Conn == nil && p.Gateway.HTTP == "box:8080" }))
	v.beats(t, 4)
	v.until(t, "still there", one(func(p Process) bool { return p.Up }))
	a.Close()
	v.until(t, "gone", func(all []Process) bool { return len(all) == 0 })
}

// TestVerifierNonsense: what no verifier and no gateway says is refused; a socket of another host is left out.
func TestVerifierNonsense(t *testing.T) {
	for name, change := range map[string]func(*wire.AnnouncedVerifier){
		"no model":                func(v *wire.AnnouncedVerifier) { v.Model = "" },
		"a model of two lines":    func(v *wire.AnnouncedVerifier) { v.Model = "m\nm" },
		"one token":               func(v *wire.AnnouncedVerifier) { v.Vocab = 1 },
		"no fingerprint":          func(v *wire.AnnouncedVerifier) { v.Fingerprint = "" },
		"-1 tokens of memory":     func(v *wire.AnnouncedVerifier) { v.KVTokens = -1 },
		"-1 tokens in a page":     func(v *wire.AnnouncedVerifier) { v.PageTokens = -1 },
		"pages of 16M tokens":     func(v *wire.AnnouncedVerifier) { v.PageTokens = 1 << 24 },
		"a queue of all subjects": func(v *wire.AnnouncedVerifier) { v.Queue = ">" },
		"a self-draft of colours": func(v *wire.AnnouncedVerifier) { v.SelfDrafts = []string{"\x1b[1m"} },
		"a long version":          func(v *wire.AnnouncedVerifier) { v.Version = strings.Repeat("v", 999) },
	} {
		v := facts()
		change(v)
		if err := check("unix:///v", &wire.Announcement{Verifier: v}); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%s: %v: want invalid", name, err)
		}
	}
	for name, g := range map[string]wire.AnnouncedGateway{"no name": {Model: "m"}, "no model": {Name: "g"},
		"an address of two lines": {Name: "g", Model: "m", HTTP: "box:1\n"}} {
		if err := check("box:1", &wire.Announcement{Gateway: &g}); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("a gateway with %s: %v: want invalid", name, err)
		}
	}
	for addr, want := range map[string]string{"unix:///v": "/s", "127.0.0.1:5": "/s", "10.0.0.2:5": ""} {
		v := facts()
		v.SegmentSocket = "/s"
		if err := check(addr, &wire.Announcement{Verifier: v}); err != nil || v.SegmentSocket != want {
			t.Errorf("%s: socket %q, %v: want %q", addr, v.SegmentSocket, err, want)
		}
	}
}

// TestOneSocketOnTwoHosts: verifiers of two hosts announce the same socket. Each host uses its own, and does not change its mind; gateways,
// which nobody calls, are all there.
func TestOneSocketOnTwoHosts(t *testing.T) {
	cfg, _ := start(t)
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	x := startVerifier(t, &cfg, addr, addr)
	other := func(a wire.Announcement) *Announcer {
		t.Helper()
		announcer, err := Announce(AnnouncerConfig{Pool: cfg, Beat: beat, What: a})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(announcer.Close)
		return announcer
	}
	elsewhere := facts()
	elsewhere.Queue = "elsewhere"
	other(wire.Announcement{Addr: addr, Verifier: elsewhere})
	v, changes := watchKind(t, cfg, Verifiers)
	own := func(p Process) bool {
		return p.Up && p.Instance == x.announcer.What().Instance && p.Verifier.Queue == "q"
	}
	v.until(t, "announcements of the other are told from its own", func(all []Process) bool {
		return one(own)(all) && v.counters.Snapshot()["announcements.elsewhere"] > 0
	})
	before := changes.Load()
	v.beats(t, 4)
	if n := changes.Load() - before; n > 0 || !one(own)(v.now()) {
		t.Errorf("%d changes: want none; the table has %+v", n, v.now())
	}
	x.kill()
	v.until(t, "its own is down", one(func(p Process) bool { return !p.Up }))
	y := startVerifier(t, &cfg, addr, addr)
	v.until(t, "its successor", one(func(p Process) bool {
		return p.Up && p.Instance == y.announcer.What().Instance && p.Verifier.Queue == "q"
	}))
	for range 2 {
		other(wire.Announcement{Addr: "127.0.0.1:8451", Gateway: &wire.AnnouncedGateway{Name: "g", Model: "m"}})
	}
	g, _ := watchKind(t, cfg, Gateways)
	g.until(t, "both gateways", func(all []Process) bool { return len(all) == 2 && all[0].Up && all[1].Up })
}

package discovery

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/logs"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/test/testkit"
)

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

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// nonsense are announcements that no process makes, by what is wrong with them.
func nonsense(sock string) map[string]wire.Announcement {
	good := wire.AnnouncedDrafter{Name: "d", Model: "m", Vocab: 9, Fingerprint: "f"}
	with := func(change func(*wire.AnnouncedDrafter)) wire.Announcement {
		d := good
		change(&d)
		return wire.Announcement{Addr: sock, Drafters: []wire.AnnouncedDrafter{d}}
	}
	at := func(addr string) wire.Announcement {
		return wire.Announcement{Addr: addr, Drafters: []wire.AnnouncedDrafter{good}}
	}
	return map[string]wire.Announcement{
		"a model without tokens":              with(func(d *wire.AnnouncedDrafter) { d.Vocab = 0 }),
		"a model that takes any vocabulary":   with(func(d *wire.AnnouncedDrafter) { d.Vocab, d.Fingerprint = 0, "" }),
		"a fingerprint of nothing":            with(func(d *wire.AnnouncedDrafter) { d.Vocab, d.Model = 0, "" }),
		"one token":                           with(func(d *wire.AnnouncedDrafter) { d.Vocab = 1 }),
		"two thousand million tokens":         with(func(d *wire.AnnouncedDrafter) { d.Vocab = 1<<31 - 1 }),
		"tokens without a fingerprint":        with(func(d *wire.AnnouncedDrafter) { d.Fingerprint = "" }),
		"a fingerprint that is none":          with(func(d *wire.AnnouncedDrafter) { d.Fingerprint = strings.Repeat("f", 65) }),
		"a name that moves the cursor":        with(func(d *wire.AnnouncedDrafter) { d.Name = "d\x1b[2J" }),
		"a model's name of two lines":         with(func(d *wire.AnnouncedDrafter) { d.Model = "m\nlevel=ERROR" }),
		"a model's name of a thousand bytes":  with(func(d *wire.AnnouncedDrafter) { d.Model = strings.Repeat("m", 1000) }),
		"a second drafter that cannot be":     {Addr: sock, Drafters: []wire.AnnouncedDrafter{good, {Name: "e", Model: "x"}}},
		"an address without a port":           at("box"),
		"an address with a word for its port": at("box:port"),
		"port 0":                              at("box:0"),
		"port 70000":                          at("box:70000"),
		"a URL":                               at("http://box:80/x"),
		"a user in the address":               at("a@box:80"),
		"spaces in the address":               at("b ox:80"),
		"a socket without a path":             at("unix://d"),
		"a line break in the address":         at("unix:///d\nx"),
	}
}

// TestNonsenseIsRefused: a process that says what cannot be is not in the table, counted each time and told of once.
func TestNonsenseIsRefused(t *testing.T) {
	nats, err := pool.StartServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nats.Close)
	p := pool.Config{Access: nats.Access()}
	dir := t.TempDir()
	good := startProcess(t, p, "unix://"+filepath.Join(dir, "good"), false, "fine")
	var log lines
	counters := new(tandem.Counters)
	changed := make(chan []Process, 1000)
	table, err := NewTable(TableConfig{Pool: p, Beat: beat, Counters: counters, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Changed: func(processes []Process) { changed <- processes }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	bad := nonsense("unix://" + filepath.Join(dir, "bad"))
	for name, a := range bad {
		announcer, err := Announce(AnnouncerConfig{Pool: p, What: a, Beat: beat})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(announcer.Close)
	}
	told := func() int { return strings.Count(log.String(), "a drafter process is not used") }
	most := min(len(bad), logs.Most) // lines
	if !testkit.Until(func() bool {
		return told() >= most && counters.Snapshot()["announcements.refused"] >= int64(3*len(bad))
	}) {
		t.Fatalf("told of %d of %d processes, counted %v:\n%s", told(), len(bad), counters.Snapshot(), log.String())
	}
	for end := time.Now().Add(30 * time.Second); ; {
		var processes []Process
		select {
		case processes = <-changed:
		case <-time.After(time.Until(end)):
			t.Fatal("the process that is well is not in the table")
		}
		for _, x := range processes {
			if x.Addr != good.addr {
				t.Fatalf("the table has %+v", x)
			}
		}
		if len(processes) == 1 && processes[0].Up {
			break
		}
	}
	if n := told(); n != most {
		t.Errorf("told %d times of %d bad processes:\n%s", n, len(bad), log.String())
	}
}

// TestSenseIsTaken: what tandem's own processes say.
func TestSenseIsTaken(t *testing.T) {
	for _, addr := range []string{"unix:///run/user/1000/tandem/drafter.sock", "10.0.0.2:8452", "[fe80::1]:8452", "box.example:8452",
		"localhost:1"} {
		drafters := []wire.AnnouncedDrafter{{Name: "lookup"}, {Name: "small-q8_0", Model: "Größer 1B", Vocab: 32000,
			Fingerprint: "00f1e2d3c4b5a697"}, {Name: "nameless", Vocab: 2, Fingerprint: "f"}}
		if err := check(addr, &wire.Announcement{Drafters: drafters}); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

// TestComplaintsAreForgotten before they fill the memory.
func TestComplaintsAreForgotten(t *testing.T) {
	table := &Table{cfg: TableConfig{Counters: new(tandem.Counters), Log: slog.New(slog.DiscardHandler)}, complaints: map[[2]string]bool{}}
	for i := range 10 * mostComplaints {
		table.refuse("box", tandem.Errorf(op, tandem.Invalid, "reason %d", i))
	}
	if n := len(table.complaints); n > mostComplaints {
		t.Errorf("%d are remembered: want at most %d", n, mostComplaints)
	}
}

// TestUnprovedProcesses: to a process that does not prove that it has the secret nothing is sent, however it announces itself; one that
// does is used. Its announcements of another protocol are reported once.
func TestUnprovedProcesses(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("a-secret-of-this-test"), 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := rpc.OpenSecret(secret, nil)
	if err != nil {
		t.Fatal(err)
	}
	with := &rpc.Credentials{Secret: own}
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	good, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	socket, err := net.Listen("unix", filepath.Join(dir, "trap"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	seen := make(chan string, 100)
	for _, l := range []net.Listener{trap, socket, good} {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				seen <- l.Addr().String()
				_ = c.Close()
			}
		}()
	}
	counters := new(tandem.Counters)
	var refusals atomic.Int64
	table, err := NewTable(TableConfig{Pool: p, Beat: beat, Counters: counters, Dial: with.Dialer(""), Vouch: with.Vouch,
		Refused: func(error) { refusals.Add(1) }, Changed: func([]Process) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	some := []wire.AnnouncedDrafter{{Name: "lookup"}}
	other := func(string, []byte) string { return strings.Repeat("0", 64) }
	for _, sign := range []func(string, []byte) string{nil, other,
		func(_ string, message []byte) string { return with.Sign("192.0.2.1:1", message[:len(message)-1]) }} {
		for _, addr := range []string{trap.Addr().String(), "unix://" + socket.Addr().String()} {
			a, err := Announce(AnnouncerConfig{Pool: p, What: wire.Announcement{Addr: addr, Drafters: some}, Beat: beat, Sign: sign})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(a.Close)
		}
	}
	conn, err := p.Connect("stranger", func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	strangers := func() {
		for i := range 50 { // instances of another protocol, as fast as they come
			b, err := proto.Marshal(&peerv1.Announcement{Version: 1, Instance: uint64(i + 1), Sequence: 1, Address: trap.Addr().String(),
				State: peerv1.State_STATE_UP, Protocol: uint32(100 + i), Drafters: []*peerv1.AnnouncedDrafter{{Name: "x"}}})
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.Publish(p.Subject(Drafters.subject), b); err != nil {
				t.Fatal(err)
			}
		}
	}
	testkit.Eventually(t, "another protocol is reported", func() bool { // what is said before the table listens is lost
		strangers()
		return refusals.Load() > 0
	})
	strangers()
	a, err := Announce(AnnouncerConfig{Pool: p,
		What: wire.Announcement{Addr: good.Addr().String(), Drafters: some}, Beat: beat, Sign: with.Sign})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	testkit.Eventually(t, "announcements are refused", func() bool { return counters.Snapshot()["announcements.refused"] >= 18 })
	if addr := <-seen; addr != good.Addr().String() {
		t.Errorf("%s was dialed: want %s alone, which proved itself", addr, good.Addr())
	}
	if n := refusals.Load(); n != 1 {
		t.Errorf("another protocol was reported %d times for one address: want once", n)
	}
}

// TestSegmentPathsOfOtherHosts: a drafter on another host cannot make this process connect to a unix socket here.
func TestSegmentPathsOfOtherHosts(t *testing.T) {
	for _, addr := range []string{"192.0.2.1:8452", "box.example:8452", "[2001:db8::1]:1"} {
		if socket, err := finder(addr, nil)(t.Context()); socket != "" || err != nil { // without a connection, nothing is asked
			t.Errorf("%s: %q, %v", addr, socket, err)
		}
	}
}

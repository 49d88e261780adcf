package discovery

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/logs"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

const (
	missedBeats  = 3    // announcements missed before a process that cannot be reached is gone
	maxProcesses = 256  // processes in a table
	inbox        = 1024 // waiting announcements; further ones are lost, and come again
)

// Process is a process as a table sees it. What it tells of itself depends on the table's kind.
type Process struct {
	Addr     string
	Instance uint64                  // 0: it was never heard, only configured
	Drafters []wire.AnnouncedDrafter // in the process's order; empty while a configured process has not told them
	Verifier *wire.AnnouncedVerifier // nil while a configured process has not told it; not to be written to
	Gateway  *wire.AnnouncedGateway  // not to be written to
	Segment  uint64                  // id of its shared memory, 0 if it has none or has not told
	Conn     *grpc.ClientConn        // nil for a gateway
	Up       bool                    // it can be reached by gRPC
	Draining bool                    // it takes no new work
	// Lapsed says that its lease has ended without a further announcement, although the pool's server is there: prefer others.
	Lapsed bool
	Lease  time.Time // when the lease ends, unless it is heard before; zero: it was never heard
}

// TableConfig describes a table. Zero fields take the default named beside them.
type TableConfig struct {
	Pool pool.Config
	Kind Kind                                        // Drafters
	Dial func(addr string) (*grpc.ClientConn, error) // rpc.Dial
	// Vouch returns nil if what a process at addr announces is proved, as Credentials.Vouch; others are not called. nil: all are believed.
	Vouch    func(addr string, message []byte, proof string) error
	Static   []string         // addresses of processes that need not announce themselves
	Beat     time.Duration    // of the announcers: DefaultBeat
	Lease    time.Duration    // likewise: DefaultLease
	Counters *tandem.Counters // "announcements.<what>"; may be nil
	Log      *slog.Logger     // for processes with impossible announcements; nil discards
	// Changed gets all processes, sorted by address, whenever one of them has changed, from one goroutine. A process's
	// Conn stays open until the first call without that process has returned, at the end until Close. A change of the load or the lease
	// alone is none: see Processes. May be nil.
	Changed func([]Process)
	// Refused gets the reason why a process of another protocol is not used, once for each address until a process there is used. The
	// goroutine is that of Changed or, for a configured process, one of its own. May be nil.
	Refused func(err error)
}

// Table keeps the list of the running processes of one kind. Type membership decides which are running.
//
// The table asks all processes with a random number, and believes a proved announcement only with that number in it: so an announcement
// that somebody has recorded is not believed later. It takes another number at its start and whenever a process is gone. (A time in place
// of the number would need clocks that agree.)
//
// One goroutine owns the entries and receives announcements from NATS. Each entry has a goroutine that
// watches its connection, and asks a configured process for its description.
type Table struct {
	cfg    TableConfig
	conn   *pool.Conn
	heard  chan heard
	poke   chan struct{} // a connection's state has changed, or NATS came
	came   chan struct{} // NATS came
	told   chan told
	now    atomic.Pointer[[]Process]
	cancel context.CancelFunc
	work   sync.WaitGroup

	registry registry
	leased   atomic.Bool // there is a registry, and it is watched

	looks atomic.Int64 // how often all entries were checked, once a beat; tests wait for it

	membership membership         // the owner's, as all below
	number     uint64             // with which the table asks
	asked      time.Time          // when it last asked
	warnings   logs.Limit         // about processes that are not used
	complaints map[[2]string]bool // address and reason of those that were refused
	refused    map[string]bool    // addresses that spoke another protocol
}

// heard is an announcement, or the key of one that was taken out of the registry.
type heard struct {
	what wire.Announcement
	key  string // of its entry in the registry; "": it came by itself
	gone bool   // the entry was taken out; what.Instance is 0 if it is not known whose it was
}

// NewTable returns a running table. The caller must Close it. Errors: Invalid.
func NewTable(cfg TableConfig) (*Table, error) {
	if cfg.Beat == 0 {
		cfg.Beat = DefaultBeat
	}
	if cfg.Counters == nil {
		cfg.Counters = new(tandem.Counters)
	}
	if cfg.Dial == nil {
		cfg.Dial = rpc.Dial
	}
	if cfg.Kind.name == "" {
		cfg.Kind = Drafters
	}
	if cfg.Changed == nil {
		cfg.Changed = func([]Process) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Lease == 0 {
		cfg.Lease = DefaultLease
	}
	t := &Table{cfg: cfg, heard: make(chan heard, inbox), poke: make(chan struct{}, 1), came: make(chan struct{}, 1),
		told: make(chan told), membership: newMembership(cfg.Kind, cfg.Beat, cfg.Lease), complaints: map[[2]string]bool{},
		refused: map[string]bool{}, number: NewInstance()}
	t.now.Store(new([]Process))
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	for _, addr := range cfg.Static {
		if err := t.add(ctx, addr, addr, true); err != nil {
			t.Close()
			return nil, err
		}
	}
	var err error
	if t.conn, err = cfg.Pool.Connect("table", t.connected); err == nil {
		t.registry = registry{cfg.Pool, t.conn, cfg.Lease}
		_, err = t.conn.Subscribe(cfg.Pool.Subject(cfg.Kind.subject), t.hear)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	t.work.Go(func() { t.run(ctx) })
	t.work.Go(func() { t.follow(ctx) })
	return t, nil
}

// Close ends the table, waits for a call of Changed in progress, and closes the connections of its processes. Changed is not called after
// it.
func (t *Table) Close() {
	t.cancel()
	if t.conn != nil {
		t.conn.Close()
	}
	t.work.Wait()
	for _, e := range t.membership.entries {
		e.close()
	}
}

// Processes returns the processes, sorted by address, with their latest load and lease. A Conn may be closed meanwhile: see Changed.
func (t *Table) Processes() []Process { return slices.Clone(*t.now.Load()) }

// hear takes a message from NATS.
func (t *Table) hear(m *nats.Msg) {
	a, err := wire.UnmarshalAnnouncement(m.Data)
	if err != nil || !t.cfg.Kind.is(a) {
		t.cfg.Counters.Add("announcements.garbage", 1)
		return
	}
	select {
	case t.heard <- heard{what: a}:
	default:
		t.cfg.Counters.Add("announcements.lost", 1)
	}
}

// changed makes the owner look at the connections soon.
func (t *Table) changed() { signal(t.poke) }

// connected makes the owner look, and the registry be asked for.
func (t *Table) connected() {
	t.changed()
	signal(t.came)
}

// run owns the entries until ctx ends.
func (t *Table) run(ctx context.Context) {
	tick := time.NewTicker(t.cfg.Beat)
	defer tick.Stop()
	t.changed()
	var last []Process
	for {
		select {
		case <-ctx.Done():
			return
		case h := <-t.heard:
			if h.gone {
				t.membership.withdraw(h.key, h.what.Instance)
			} else {
				t.take(ctx, h)
			}
		case d := <-t.told:
			t.enter(d)
		case <-tick.C:
			t.looks.Add(1)
		case <-t.poke:
		}
		t.listen()
		gone := t.sweep()
		now := t.membership.list()
		t.now.Store(&now)
		if !slices.EqualFunc(last, now, same) {
			last = now
			t.cfg.Changed(slices.Clone(now))
		}
		for _, e := range gone {
			e.close()
		}
	}
}

// listen notices that NATS came or went; when it came, it asks all processes to announce themselves.
func (t *Table) listen() {
	t.membership.leased = t.leased.Load()
	if t.membership.server(time.Now(), t.conn.Connected()) {
		t.askAll()
	}
}

// askAll asks all processes to announce themselves with the table's number.
func (t *Table) askAll() {
	t.asked = time.Now()
	_ = t.conn.Publish(t.cfg.Pool.Subject(t.cfg.Kind.ask()), binary.LittleEndian.AppendUint64(nil, t.number))
}

// fresh reports whether an announcement, if it is proved, was made since the table has asked with its number. If not, it asks again, now
// and then. A process of an earlier release does not tell, and is believed.
func (t *Table) fresh(a wire.Announcement) bool {
	if a.Proof == "" || len(a.Asked) == 0 || slices.Contains(a.Asked, t.number) {
		return true
	}
	t.cfg.Counters.Add("announcements.unasked", 1)
	if time.Since(t.asked) > askPause {
		t.askAll()
	}
	return false
}

// enter records what a process told when it was asked.
func (t *Table) enter(d told) {
	e := t.membership.entries[d.addr]
	if e == nil {
		return
	}
	if err := check(d.addr, &d.what); err != nil {
		t.refuse(d.addr, err)
		return
	}
	t.membership.tell(time.Now(), e, d.what)
}

// take records an announcement.
func (t *Table) take(ctx context.Context, h heard) {
	a := h.what
	id := t.cfg.Kind.id(a)
	e := t.membership.entries[id]
	unproved := t.vouch(a)
	if !t.understood(a) {
		if e != nil && unproved == nil {
			e.record(time.Now(), wire.Announcement{}) // another process was at this address before
		}
		return
	}
	if err := cmp.Or(check(a.Addr, &a), unproved); err != nil {
		t.refuse(a.Addr, err)
		return
	}
	if !t.fresh(a) {
		return
	}
	delete(t.refused, a.Addr)
	if e == nil {
		if a.Draining {
			return // it will be gone before it could be used
		}
		if err := t.add(ctx, id, a.Addr, false); err != nil {
			t.cfg.Counters.Add("announcements.garbage", 1)
			return
		}
		e = t.membership.entries[id]
	}
	if e.otherHosts(a) {
		t.cfg.Counters.Add("announcements.elsewhere", 1)
		return
	}
	before := e.Instance
	switch {
	case !t.membership.hear(time.Now(), e, a):
		if h.key == "" { // what is in the registry may be a little older
			t.cfg.Counters.Add("announcements.stale", 1)
		}
	case before != 0 && before != a.Instance:
		t.cfg.Counters.Add("announcements.restarted", 1)
	}
}

// vouch returns nil if an announcement is proved, or needs no proof. Errors: Unauthenticated.
func (t *Table) vouch(a wire.Announcement) error {
	if t.cfg.Vouch == nil {
		return nil
	}
	return t.cfg.Vouch(a.Addr, a.Signed, a.Proof)
}

// understood reports whether the sender of a speaks our protocol. That it does not is reported once for each address, because an address
// may announce any number of instances.
func (t *Table) understood(a wire.Announcement) bool {
	err := rpc.CheckProtocol(a.Protocol, fmt.Sprintf("%s at %.200q", t.cfg.Kind.name, a.Addr), "this process")
	if err == nil {
		return true
	}
	if !t.refused[a.Addr] && len(t.refused) < maxProcesses {
		t.refused[a.Addr] = true
		t.stranger(err)
	}
	return false
}

// stranger counts and reports a process of another protocol.
func (t *Table) stranger(err error) {
	t.cfg.Counters.Add("refused.protocol", 1)
	if t.cfg.Refused != nil {
		t.cfg.Refused(err)
	}
}

// sweep updates the state of the entries' connections and returns the entries that are gone.
func (t *Table) sweep() (gone []*entry) {
	gone, again := t.membership.sweep(time.Now(), func(e *entry) bool { return e.Conn.GetState() == connectivity.Ready })
	for _, e := range again {
		e.ask()
	}
	for range gone {
		t.cfg.Counters.Add("announcements.gone", 1)
	}
	if len(gone) > 0 { // what they have announced is not believed again: the next announcement has the table ask anew
		t.number = NewInstance()
	}
	return gone
}

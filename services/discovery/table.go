package discovery

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/drafting"
	"github.com/tandem-llm/tandem/services/logs"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/wire"
)

const (
	missedBeats  = 3                      // announcements missed before a process that cannot be reached is gone
	maxProcesses = 64                     // processes in a table
	maxDrafters  = 16                     // of one process
	inbox        = 256                    // waiting announcements; further ones are lost, and come again
	askPause     = 100 * time.Millisecond // before a static process that did not describe itself is asked again
	askTime      = time.Second            // for one Describe
)

// Process is a drafter process as a table sees it.
type Process struct {
	Addr     string
	Instance uint64                  // 0: it was never heard, only configured
	Drafters []wire.AnnouncedDrafter // in the process's order; empty while a configured process has not told them
	Segment  uint64                  // id of its shared memory, 0 if it has none or has not told
	Conn     *grpc.ClientConn
	Up       bool // it can be reached by gRPC
	Draining bool // it takes no new work
}

// Config describes a table. Zero fields take the default named beside them.
type Config struct {
	Pool pool.Config
	Dial func(addr string) (*grpc.ClientConn, error) // rpc.Dial
	// Vouch returns nil if what a process at addr announces is proved, as Credentials.Vouch; nothing is sent to another. nil: all are
	// believed.
	Vouch    func(addr string, message []byte, proof string) error
	Static   []string         // addresses of processes that need not announce themselves
	Beat     time.Duration    // of the announcers: DefaultBeat
	Counters *tandem.Counters // "announcements.<what>"; may be nil
	Log      *slog.Logger     // for processes with impossible announcements; nil discards
	// Changed gets all processes, sorted by address, whenever one of them has changed, from one goroutine. A process's
	// Conn stays open until the first Changed without the process has returned, or the last before Close.
	Changed func([]Process)
	// Refused gets the reason why a process of another protocol is not used, once for each address until a process there is used. The
	// goroutine is that of Changed or, for a configured process, one of its own. May be nil.
	Refused func(err error)
}

// Table keeps the drafter processes that are there.
//
// One goroutine owns the entries and receives announcements from NATS. Each entry has a goroutine that
// watches its connection, and asks a configured process for its description.
//
//  1. An address has one entry: a process that was restarted at its old address takes the entry over.
//  2. An announcement changes an entry only if its instance is another one or its sequence is later.
//  3. An entry is removed only if its process was not heard for three beats, although NATS was connected all
//     the time, and cannot be reached by gRPC. A configured one is never removed.
type Table struct {
	cfg    Config
	conn   *pool.Conn
	heard  chan wire.Announcement
	poke   chan struct{} // a connection's state has changed, or NATS came
	told   chan told
	cancel context.CancelFunc
	work   sync.WaitGroup

	processes  map[string]*entry  // the owner's, as all below
	warnings   logs.Limit         // about processes that are not used
	complaints map[[2]string]bool // address and reason of those that were refused
	refused    map[string]bool    // addresses that spoke another protocol
	since      time.Time          // when NATS was connected; zero while it is away
}

// entry is a process and what the table remembers of it.
type entry struct {
	Process
	sequence uint64
	seen     time.Time
	static   bool
	cancel   context.CancelFunc
}

// told is the description that a configured process gave.
type told struct {
	addr     string
	drafters []wire.AnnouncedDrafter
}

// NewTable returns a running table. The caller must Close it. Errors: Invalid.
func NewTable(cfg Config) (*Table, error) {
	if cfg.Beat == 0 {
		cfg.Beat = DefaultBeat
	}
	if cfg.Counters == nil {
		cfg.Counters = new(tandem.Counters)
	}
	if cfg.Dial == nil {
		cfg.Dial = rpc.Dial
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	t := &Table{cfg: cfg, heard: make(chan wire.Announcement, inbox), poke: make(chan struct{}, 1), told: make(chan told),
		processes: map[string]*entry{}, complaints: map[[2]string]bool{},
		refused: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	for _, addr := range cfg.Static {
		if err := t.add(ctx, addr, true); err != nil {
			t.Close()
			return nil, err
		}
	}
	var err error
	if t.conn, err = cfg.Pool.Connect("table", t.changed); err == nil {
		_, err = t.conn.Subscribe(cfg.Pool.Subject(kindAnnounce), t.hear)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	t.work.Go(func() { t.run(ctx) })
	return t, nil
}

// Close ends the table and closes its connections. Changed is not called after it.
func (t *Table) Close() {
	t.cancel()
	if t.conn != nil {
		t.conn.Close()
	}
	t.work.Wait()
	for _, e := range t.processes {
		_ = e.Conn.Close()
	}
}

// hear takes a message from NATS.
func (t *Table) hear(m *nats.Msg) {
	a, err := wire.UnmarshalAnnouncement(m.Data)
	if err != nil {
		t.cfg.Counters.Add("announcements.garbage", 1)
		return
	}
	select {
	case t.heard <- a:
	default:
		t.cfg.Counters.Add("announcements.lost", 1)
	}
}

// changed makes the owner look at the connections soon.
func (t *Table) changed() {
	select {
	case t.poke <- struct{}{}:
	default:
	}
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
		case a := <-t.heard:
			t.take(ctx, a)
		case d := <-t.told:
			t.enter(d)
		case <-tick.C:
		case <-t.poke:
		}
		t.listen()
		gone := t.sweep()
		if now := t.snapshot(); !slices.EqualFunc(last, now, same) {
			last = now
			t.cfg.Changed(slices.Clone(now))
		}
		for _, e := range gone {
			e.cancel()
			_ = e.Conn.Close()
		}
	}
}

// listen notices that NATS came or went; when it came, it asks all processes to announce themselves.
func (t *Table) listen() {
	switch connected := t.conn.Connected(); {
	case !connected:
		t.since = time.Time{}
	case t.since.IsZero():
		t.since = time.Now()
		_ = t.conn.Publish(t.cfg.Pool.Subject(kindAsk), nil)
	}
}

// enter records what a configured process told.
func (t *Table) enter(d told) {
	e := t.processes[d.addr]
	if e == nil {
		return
	}
	if err := check(d.addr, d.drafters); err != nil {
		t.refuse(d.addr, err)
		return
	}
	e.Drafters = d.drafters
}

// take records an announcement.
func (t *Table) take(ctx context.Context, a wire.Announcement) {
	e := t.processes[a.Addr]
	unproved := t.vouch(a)
	if !t.understood(a) {
		if e != nil && unproved == nil {
			e.Drafters = nil // another process was at this address before
		}
		return
	}
	if err := cmp.Or(check(a.Addr, a.Drafters), unproved); err != nil {
		t.refuse(a.Addr, err)
		return
	}
	delete(t.refused, a.Addr)
	if e == nil {
		if a.Draining {
			return // it will be gone before it could be used
		}
		if err := t.add(ctx, a.Addr, false); err != nil {
			t.cfg.Counters.Add("announcements.garbage", 1)
			return
		}
		e = t.processes[a.Addr]
	}
	if a.Instance == e.Instance && a.Sequence <= e.sequence {
		t.cfg.Counters.Add("announcements.stale", 1)
		return
	}
	if a.Instance != e.Instance && e.Instance != 0 {
		t.cfg.Counters.Add("announcements.restarted", 1)
	}
	e.Instance, e.sequence, e.seen = a.Instance, a.Sequence, time.Now()
	e.Drafters, e.Segment, e.Draining = a.Drafters, a.Segment, a.Draining
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
	err := rpc.CheckProtocol(a.Protocol, fmt.Sprintf("drafter process at %.200q", a.Addr), "this process")
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

// add makes an entry and watches its connection. Errors: Invalid, Exhausted.
func (t *Table) add(ctx context.Context, addr string, static bool) error {
	if t.processes[addr] != nil {
		return nil
	}
	if len(t.processes) >= maxProcesses {
		return tandem.Errorf(op, tandem.Exhausted, "drafter process %s: %d are known already, and no more may be", addr, len(t.processes))
	}
	conn, err := t.cfg.Dial(addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	t.processes[addr] = &entry{Process: Process{Addr: addr, Conn: conn}, static: static, seen: time.Now(), cancel: cancel}
	t.work.Go(func() { t.watch(ctx, addr, conn, static) })
	return nil
}

// watch keeps a connection alive and pokes the owner when its state changes. A configured process is asked
// what it is whenever it came up.
func (t *Table) watch(ctx context.Context, addr string, conn *grpc.ClientConn, static bool) {
	for {
		state := conn.GetState()
		t.changed()
		switch {
		case state == connectivity.Idle:
			conn.Connect()
		case state == connectivity.Ready && static:
			t.ask(ctx, addr, conn)
		}
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// ask asks the process at the other end of conn for its description, while it can be reached, and passes it to the owner.
func (t *Table) ask(ctx context.Context, addr string, conn *grpc.ClientConn) {
	for conn.GetState() == connectivity.Ready {
		if drafters, err := Describe(ctx, addr, conn); err == nil || tandem.Refusal(err) != "" {
			if err != nil {
				t.stranger(err)
			}
			select {
			case t.told <- told{addr, drafters}:
			case <-ctx.Done():
			}
			return
		}
		select {
		case <-time.After(askPause):
		case <-ctx.Done():
			return
		}
	}
}

// Describe asks the process at the other end of conn for its drafters. Errors: those of the call, and tandem.OpProtocol.
func Describe(ctx context.Context, addr string, conn grpc.ClientConnInterface) ([]wire.AnnouncedDrafter, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	first, err := drafting.NewClient(conn, "").Describe(ctx)
	if err != nil {
		return nil, err
	}
	if err := rpc.CheckProtocol(first.Protocol, "drafter process at "+addr, "this process"); err != nil {
		return nil, err
	}
	var out []wire.AnnouncedDrafter
	for _, name := range first.Drafters[:min(len(first.Drafters), maxDrafters)] {
		d, err := drafting.NewClient(conn, name).Describe(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, wire.AnnouncedDrafter{Name: name, Model: d.Model, Vocab: d.Vocab, Fingerprint: d.Fingerprint,
			Identity: d.Identity, Lineage: d.Lineage, Features: len(d.Taps) > 0, Costs: d.Costs})
	}
	return out, nil
}

// sweep updates the state of the entries' connections and removes the entries that are gone.
func (t *Table) sweep() (gone []*entry) {
	late := missedBeats * t.cfg.Beat
	for addr, e := range t.processes {
		up := e.Conn.GetState() == connectivity.Ready
		if up && !e.Up {
			e.Draining = false // a draining process takes no new connection: this is its successor
		}
		e.Up = up
		if !e.Up && !e.static && time.Since(e.seen) > late && !t.since.IsZero() && time.Since(t.since) > late {
			t.cfg.Counters.Add("announcements.gone", 1)
			delete(t.processes, addr)
			gone = append(gone, e)
		}
	}
	return gone
}

// snapshot returns the processes by address.
func (t *Table) snapshot() []Process {
	out := make([]Process, 0, len(t.processes))
	for _, e := range t.processes {
		out = append(out, e.Process)
	}
	slices.SortFunc(out, func(a, b Process) int { return cmp.Compare(a.Addr, b.Addr) })
	return out
}

// same reports whether a process is as it was.
func same(a, b Process) bool {
	return a.Addr == b.Addr && a.Instance == b.Instance && a.Segment == b.Segment && a.Conn == b.Conn && a.Up == b.Up &&
		a.Draining == b.Draining && slices.EqualFunc(a.Drafters, b.Drafters, wire.AnnouncedDrafter.Equal)
}

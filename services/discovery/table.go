package discovery

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/drafting"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/wire"
)

const (
	missedBeats = 3                      // announcements missed before a process that cannot be reached is gone
	maxPeers    = 64                     // processes in a table
	maxDrafters = 16                     // of one process
	inbox       = 256                    // announcements that wait; beyond it they are lost, and come again
	askPause    = 100 * time.Millisecond // before a static process that did not describe itself is asked again
	askTime     = time.Second            // for one Describe
)

// Peer is a drafter process as a table sees it.
type Peer struct {
	Addr     string
	Instance uint64         // 0: it was never heard, only configured
	Drafters []wire.Drafter // in the process's order; empty while a configured process has not told them
	Segment  uint64         // id of its shared memory, 0 if it has none or has not told
	Conn     *grpc.ClientConn
	Up       bool // it can be reached by gRPC
	Draining bool // it takes no new work
}

// Config describes a table. Zero fields take the default named beside them.
type Config struct {
	Pool     pool.Config
	Dial     func(addr string) (*grpc.ClientConn, error) // rpc.Dial
	Static   []string                                    // addresses of processes that need not announce themselves
	Beat     time.Duration                               // of the announcers: DefaultBeat
	Counters *tandem.Counters                            // "announcements.<what>"; may be nil
	// Changed is told all peers, by address, whenever one of them has changed, from one goroutine. A peer's
	// Conn stays open until the first Changed without the peer has returned, or the last before Close.
	Changed func([]Peer)
}

// Table keeps the drafter processes that are there.
//
// One goroutine owns the entries. It hears announcements from NATS; each entry has a goroutine that
// watches its connection, and for a configured process asks what it is.
//
//  1. An address has one entry: a process that was restarted at its old address takes the entry over.
//  2. An announcement changes an entry only if its instance is another one or its sequence is later.
//  3. An entry goes away only if its process was not heard for three beats, although NATS was connected all
//     the time, and cannot be reached by gRPC; one that was configured never does.
type Table struct {
	cfg    Config
	conn   *pool.Conn
	heard  chan wire.Announcement
	poke   chan struct{} // a connection's state has changed, or NATS came
	told   chan told
	cancel context.CancelFunc
	work   sync.WaitGroup

	peers map[string]*entry // the owner's
	since time.Time         // when NATS was connected; zero while it is away. The owner's
}

// entry is a peer and what the table remembers of it.
type entry struct {
	Peer
	sequence uint64
	seen     time.Time
	static   bool
	cancel   context.CancelFunc
}

// told is what a configured process said that it is.
type told struct {
	addr     string
	drafters []wire.Drafter
}

// NewTable returns a table that is at work. The caller must Close it. Errors: Invalid.
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
	t := &Table{cfg: cfg, heard: make(chan wire.Announcement, inbox), poke: make(chan struct{}, 1), told: make(chan told), peers: map[string]*entry{}}
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
	for _, e := range t.peers {
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

// changed has the owner look at the connections soon.
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
	var last []Peer
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-t.heard:
			t.take(ctx, a)
		case d := <-t.told:
			if e := t.peers[d.addr]; e != nil {
				e.Drafters = d.drafters
			}
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

// listen notices that NATS came or went, and asks everyone to announce himself when it came.
func (t *Table) listen() {
	switch connected := t.conn.Connected(); {
	case !connected:
		t.since = time.Time{}
	case t.since.IsZero():
		t.since = time.Now()
		_ = t.conn.Publish(t.cfg.Pool.Subject(kindAsk), nil)
	}
}

// take enters what a process announced.
func (t *Table) take(ctx context.Context, a wire.Announcement) {
	e := t.peers[a.Addr]
	if e == nil {
		if a.Draining {
			return // it will be gone before it could be used
		}
		if err := t.add(ctx, a.Addr, false); err != nil {
			t.cfg.Counters.Add("announcements.garbage", 1)
			return
		}
		e = t.peers[a.Addr]
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

// add makes an entry and watches its connection. Errors: Invalid, Exhausted.
func (t *Table) add(ctx context.Context, addr string, static bool) error {
	if t.peers[addr] != nil {
		return nil
	}
	if len(t.peers) >= maxPeers {
		return tandem.Errorf(op, tandem.Exhausted, "drafter process %s: %d are known already, and no more may be", addr, len(t.peers))
	}
	conn, err := t.cfg.Dial(addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	t.peers[addr] = &entry{Peer: Peer{Addr: addr, Conn: conn}, static: static, seen: time.Now(), cancel: cancel}
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

// ask tells the owner what the process at the other end of conn says that it is, while it can be reached.
func (t *Table) ask(ctx context.Context, addr string, conn *grpc.ClientConn) {
	for conn.GetState() == connectivity.Ready {
		if drafters, err := Describe(ctx, conn); err == nil {
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

// Describe asks the process at the other end of conn for its drafters.
func Describe(ctx context.Context, conn grpc.ClientConnInterface) ([]wire.Drafter, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	first, err := drafting.NewClient(conn, "").Describe(ctx)
	if err != nil {
		return nil, err
	}
	var out []wire.Drafter
	for _, name := range first.Drafters[:min(len(first.Drafters), maxDrafters)] {
		d, err := drafting.NewClient(conn, name).Describe(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, wire.Drafter{Name: name, Model: d.Model, Vocab: d.Vocab, Fingerprint: d.Fingerprint})
	}
	return out, nil
}

// sweep brings what the entries know of their connections up to date and removes those that are gone.
func (t *Table) sweep() (gone []*entry) {
	late := missedBeats * t.cfg.Beat
	for addr, e := range t.peers {
		up := e.Conn.GetState() == connectivity.Ready
		if up && !e.Up {
			e.Draining = false // who drains takes no new connection: this is its successor
		}
		e.Up = up
		if !e.Up && !e.static && time.Since(e.seen) > late && !t.since.IsZero() && time.Since(t.since) > late {
			t.cfg.Counters.Add("announcements.gone", 1)
			delete(t.peers, addr)
			gone = append(gone, e)
		}
	}
	return gone
}

// snapshot returns the peers by address.
func (t *Table) snapshot() []Peer {
	out := make([]Peer, 0, len(t.peers))
	for _, e := range t.peers {
		out = append(out, e.Peer)
	}
	slices.SortFunc(out, func(a, b Peer) int { return cmp.Compare(a.Addr, b.Addr) })
	return out
}

// same reports whether a peer is as it was.
func same(a, b Peer) bool {
	return a.Addr == b.Addr && a.Instance == b.Instance && a.Segment == b.Segment && a.Conn == b.Conn && a.Up == b.Up &&
		a.Draining == b.Draining && slices.Equal(a.Drafters, b.Drafters)
}

// Package discovery lets the processes of a fleet find each other. Each Announcer repeatedly announces its process through NATS; a
// Table keeps the announcements of one Kind of process, and a gRPC connection to each. NATS says which processes should be there, gRPC
// which are: while the NATS server is away the table stays as it is, and the connections alone decide. Where the server has JetStream,
// the processes are in a registry as well, so that a table which starts sees them at once.
package discovery

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

const (
	op = "discovery"

	// DefaultBeat is the time between two announcements of a process.
	DefaultBeat = 500 * time.Millisecond
)

// AnnouncerConfig describes an announcer. Zero fields take the default named beside them.
type AnnouncerConfig struct {
	Pool pool.Config
	What wire.Announcement // what to announce at first; Instance 0: a random one. Sequence is filled in
	Beat time.Duration     // between two announcements: DefaultBeat
	// Lease is how long an entry in the registry holds, if there is one: DefaultLease. All processes of a fleet must have the same.
	Lease time.Duration
	// Sign, as Credentials.Sign, proves each announcement; nil: none is proved.
	Sign func(addr string, message []byte) string
	// Load fills in what changes from one announcement to the next. It replaces pointers in what, and never writes through them. It must
	// not call the announcer. nil: nothing changes.
	Load func(what *wire.Announcement)
}

// Announcer tells others about one process. Safe for concurrent use.
type Announcer struct {
	cfg     AnnouncerConfig
	subject string
	conn    *pool.Conn
	sign    func(message []byte) string // may be nil

	registry registry
	key      string // in the registry

	mu    sync.Mutex
	what  wire.Announcement
	asked []uint64 // numbers of tables that have asked: a 0, then the others, the latest last. Replaced, never written to

	poke chan struct{} // an announcement is due
	due  chan struct{} // the key must be put at once
	stop chan struct{}
	work sync.WaitGroup
}

// Announce announces a process every beat, and at once when a table asks, until Close, which the caller must call. While the pool's server
// is away announcements are lost. Errors: Invalid.
func Announce(cfg AnnouncerConfig) (*Announcer, error) {
	if cfg.Beat == 0 {
		cfg.Beat = DefaultBeat
	}
	if cfg.Lease == 0 {
		cfg.Lease = DefaultLease
	}
	what := cfg.What
	if what.Instance == 0 {
		what.Instance = NewInstance()
	}
	if v := what.Verifier; v != nil && !rpc.OnThisHost(what.Addr) {
		here := *v
		here.SegmentSocket = "" // no path of this host is of use to another
		what.Verifier = &here
	}
	kind := kindOf(what)
	a := &Announcer{asked: []uint64{0}, cfg: cfg, subject: cfg.Pool.Subject(kind.subject), key: kind.key(kind.id(what)), what: what,
		poke: make(chan struct{}, 1), due: make(chan struct{}, 1), stop: make(chan struct{})}
	if cfg.Sign != nil {
		a.sign = func(message []byte) string { return cfg.Sign(what.Addr, message) }
	}
	_, err := what.Marshal(a.sign)
	if err != nil {
		return nil, err
	}
	if a.conn, err = cfg.Pool.Connect("announcer", a.connected); err != nil {
		return nil, err
	}
	a.registry = registry{cfg.Pool, a.conn, cfg.Lease}
	if _, err := a.conn.Subscribe(cfg.Pool.Subject(kind.ask()), a.answer); err != nil {
		a.conn.Close()
		return nil, err
	}
	a.now()
	a.work.Go(a.run)
	a.work.Go(a.renew)
	return a, nil
}

// connected makes the process known to a server that may have forgotten it.
func (a *Announcer) connected() {
	a.now()
	signal(a.due)
}

// answer takes a table's question, and answers it at once.
func (a *Announcer) answer(m *nats.Msg) {
	if len(m.Data) == 8 { // a table of an earlier release asks with nothing
		number := binary.LittleEndian.Uint64(m.Data)
		a.mu.Lock()
		known := slices.Contains(a.asked, number)
		if number != 0 {
			others := slices.DeleteFunc(slices.Clone(a.asked[1:]), func(n uint64) bool { return n == number })
			a.asked = append(append([]uint64{0}, others[max(0, len(others)+2-wire.MostAsked):]...), number)
		}
		a.mu.Unlock()
		if !known {
			signal(a.due)
		}
	}
	a.now()
}

// now makes the next announcement due at once.
func (a *Announcer) now() { signal(a.poke) }

// signal wakes whoever waits for c.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (a *Announcer) run() {
	t := time.NewTicker(a.cfg.Beat)
	defer t.Stop()
	for {
		select {
		case <-a.stop:
			return
		case <-a.poke:
		case <-t.C:
		}
		a.send()
	}
}

// send publishes one announcement; it is lost while the server is away.
func (a *Announcer) send() {
	if data, err := a.next(); err == nil {
		_ = a.conn.Publish(a.subject, data)
	}
}

// next returns the next announcement, encoded.
func (a *Announcer) next() ([]byte, error) {
	what := a.What()
	a.mu.Lock()
	a.what.Sequence++
	what.Sequence, what.Draining, what.Asked = a.what.Sequence, a.what.Draining, a.asked
	a.mu.Unlock()
	return what.Marshal(a.sign)
}

// What returns what the process announces now. What its pointers point at must not be written to.
func (a *Announcer) What() wire.Announcement {
	a.mu.Lock()
	what := a.what
	a.mu.Unlock()
	if a.cfg.Load != nil {
		a.cfg.Load(&what)
	}
	return what
}

// Drain announces, at once and from now on, that the process takes no new work; with undo, that it takes work again.
func (a *Announcer) Drain(undo bool) {
	a.mu.Lock()
	a.what.Draining = !undo
	a.mu.Unlock()
	a.send()
	signal(a.due)
	if a.conn.Connected() {
		_ = a.conn.FlushTimeout(a.cfg.Beat)
	}
}

// Draining reports whether the process takes no new work.
func (a *Announcer) Draining() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.what.Draining
}

// Close ends the announcements, and takes the process out of the registry. Others notice when the process no longer answers.
func (a *Announcer) Close() {
	close(a.stop)
	a.work.Wait()
	a.conn.Close()
}

// NewInstance returns a random number other than 0, by which a process can be told from its predecessors.
func NewInstance() uint64 {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:])
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

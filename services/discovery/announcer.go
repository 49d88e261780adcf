// Package discovery lets gateway and verifier find the drafter processes that are alive. Each Announcer
// repeatedly announces its process through NATS; a Table keeps the announcements and a gRPC connection
// to every process. NATS says which processes should be there, gRPC which are: while the NATS server is
// away the table stays as it is, and the connections alone decide.
package discovery

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/wire"
)

const (
	op = "discovery"

	// DefaultBeat is the time between two announcements of a process.
	DefaultBeat = 500 * time.Millisecond

	kindAnnounce = "drafters"     // subject of announcements
	kindAsk      = "drafters.ask" // subject of requests to announce at once
)

// Announcer tells others about one drafter process. Safe for concurrent use.
type Announcer struct {
	beat    time.Duration
	subject string
	conn    *pool.Conn
	sign    func(message []byte) string // may be nil

	mu   sync.Mutex
	what wire.Announcement

	poke chan struct{}
	stop chan struct{}
	work sync.WaitGroup
}

// Announce announces a process every beat (0: DefaultBeat), and at once when a table asks. It fills in
// Instance and Sequence of what, and sign, as Credentials.Sign, proves each announcement; nil: none is proved. The caller must
// Close the Announcer. Errors: Invalid.
func Announce(cfg pool.Config, what wire.Announcement, beat time.Duration,
	sign func(addr string, message []byte) string) (*Announcer, error) {
	if beat == 0 {
		beat = DefaultBeat
	}
	what.Instance = random()
	a := &Announcer{beat: beat, subject: cfg.Subject(kindAnnounce), what: what, poke: make(chan struct{}, 1), stop: make(chan struct{})}
	if sign != nil {
		a.sign = func(message []byte) string { return sign(what.Addr, message) }
	}
	_, err := what.Marshal(a.sign)
	if err != nil {
		return nil, err
	}
	if a.conn, err = cfg.Connect("announcer", a.now); err != nil {
		return nil, err
	}
	if _, err := a.conn.Subscribe(cfg.Subject(kindAsk), func(*nats.Msg) { a.now() }); err != nil {
		a.conn.Close()
		return nil, err
	}
	a.now()
	a.work.Go(a.run)
	return a, nil
}

// now makes the next announcement due at once.
func (a *Announcer) now() {
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

func (a *Announcer) run() {
	t := time.NewTicker(a.beat)
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
	a.mu.Lock()
	defer a.mu.Unlock()
	a.what.Sequence++
	if data, err := a.what.Marshal(a.sign); err == nil {
		_ = a.conn.Publish(a.subject, data)
	}
}

// Drain announces, at once and from now on, that the process takes no new work.
func (a *Announcer) Drain() {
	a.mu.Lock()
	a.what.Draining = true
	a.mu.Unlock()
	a.send()
	if a.conn.Connected() {
		_ = a.conn.FlushTimeout(a.beat)
	}
}

// Close ends the announcements. Others notice when the process no longer answers.
func (a *Announcer) Close() {
	close(a.stop)
	a.work.Wait()
	a.conn.Close()
}

// random returns a random number other than 0.
func random() uint64 {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:])
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

// Package pool carries tickets from drafters and gateway to the verifier through NATS: a work-queue in
// memory that holds at most a verifier batch and forgets what is old. Nothing in it is precious: a
// ticket that is lost, doubled or late costs time, never correctness.
//
// Senders publish requests on one subject; one verifier of the queue group gets each, keeps it in a
// bounded queue until it is taken, and replies whether there was room. The queue lies at the verifier's end
// rather than in a JetStream stream because a ticket is worthless without the process that holds its
// session: a stream would keep what nobody can use, and cost a round about 0.15 ms more (docs/decisions.md).
//
// A tree travels inside its ticket if it is small, else as a shared-memory payload that the verifier
// claims from the drafter. The sender's trace and the ticket's last moment travel in message headers.
package pool

import (
	"context"
	"errors"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem"
)

const (
	op = "pool"

	headerTrace    = "traceparent"
	headerDeadline = "tandem-deadline" // Unix milliseconds after which the ticket is not worth a pass
	headerClock    = "tandem-clock"    // boot id of the host whose clock the deadline is of

	replyOK   = "ok"
	replyFull = "full"

	dialTime = time.Second // to connect
)

// Config is what publishers and sources of one pool share. Zero fields take the default named beside
// them.
type Config struct {
	Access
	Name     string           // subject prefix: "tandem-drafts"
	Batch    int              // tickets that the pool holds: 32
	MaxAge   time.Duration    // after which an untaken ticket is forgotten: 2 s
	Counters *tandem.Counters // "tickets.<what>"; may be nil
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "tandem-drafts"
	}
	if c.Batch == 0 {
		c.Batch = 32
	}
	if c.MaxAge == 0 {
		c.MaxAge = 2 * time.Second
	}
	if c.Counters == nil {
		c.Counters = new(tandem.Counters)
	}
	return c
}

func (c Config) subject() string { return c.Subject("ticket") }

// validate refuses names that NATS could not take.
func (c Config) validate() error {
	for _, u := range strings.Split(c.URL, ",") {
		if c.File != "" && c.URL == "" {
			break
		}
		if !strings.Contains(u, "://") {
			u = "nats://" + u
		}
		if p, err := url.Parse(u); err != nil || p.Hostname() == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, p.Scheme) {
			return tandem.Errorf(op, tandem.Invalid, "nats server %q: want nats://host:port", redact(c.URL))
		}
	}
	switch {
	case strings.ContainsAny(c.Name, " .*>/\\\t\r\n"):
		return tandem.Errorf(op, tandem.Invalid, "name %q: want no space and none of . * > / \\", c.Name)
	case c.Batch < 1:
		return tandem.Errorf(op, tandem.Invalid, "batch is %d: want at least 1", c.Batch)
	case c.MaxAge < 100*time.Millisecond:
		return tandem.Errorf(op, tandem.Invalid, "age limit is %v: want at least 100ms", c.MaxAge)
	}
	return nil
}

// Subject returns the subject of this pool's messages of that kind, such as "ticket".
func (c Config) Subject(kind string) string { return c.withDefaults().Name + "." + kind }

// Conn is a connection to the pool's NATS server that knows, without waiting, whether it is connected: the
// client's own IsConnected waits while it tries a server that does not answer.
type Conn struct {
	*nats.Conn
	up atomic.Bool
}

// Connected reports whether the server was reachable when last heard of.
func (c *Conn) Connected() bool { return c.up.Load() }

// Connect returns a connection to the pool's server for a further purpose. It goes on trying for ever, so
// the server may start later or come back, and calls connected, in a goroutine of the connection's own,
// whenever it has come; nothing is buffered for a server that is away. The caller closes it. Errors: Invalid.
func (c Config) Connect(role string, connected func()) (*Conn, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	return c.connect(role, connected)
}

// connect is Connect for a checked configuration.
func (c Config) connect(role string, connected func()) (*Conn, error) {
	out := new(Conn)
	come := func(*nats.Conn) {
		out.up.Store(true)
		connected()
	}
	opts := []nats.Option{
		nats.ConnectHandler(come), nats.ReconnectHandler(come), nats.DisconnectErrHandler(func(*nats.Conn, error) { out.up.Store(false) }),
		nats.Name("tandem " + role), nats.Timeout(dialTime), nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond), nats.ReconnectJitter(10*time.Millisecond, 10*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.IgnoreAuthErrorAbort(), nats.PingInterval(2 * time.Second), nats.MaxPingsOutstanding(2),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the default prints to stderr
	}
	server, access := c.options()
	var err error
	if out.Conn, err = nats.Connect(server, append(opts, access...)...); err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "nats server %s: %w", c.where(), err)
	}
	if out.IsConnected() {
		out.up.Store(true) // the handler may not have run yet
	}
	return out, nil
}

// redact removes a password or token from a NATS URL for use in a message.
func redact(u string) string {
	if i, j := strings.Index(u, "://"), strings.LastIndex(u, "@"); i >= 0 && j > i {
		return u[:i+3] + "…" + u[j:]
	}
	return u
}

// poolError gives an error of the NATS client its kind.
func poolError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return tandem.Errorf(op, tandem.Canceled, "%w", err)
	case errors.Is(err, nats.ErrNoResponders):
		return tandem.Errorf(op, tandem.Unavailable, "no verifier takes tickets")
	}
	return tandem.Errorf(op, tandem.Unavailable, "nats: %w", err)
}

// clock returns the boot id of this host: processes with the same one read the same clock.
func clock() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// expired reports whether a ticket's last moment has passed, as far as this host can tell.
func expired(h nats.Header, clock string, now time.Time) bool {
	if clock == "" || h.Get(headerClock) != clock {
		return false
	}
	ms, err := strconv.ParseInt(h.Get(headerDeadline), 10, 64)
	return err == nil && now.UnixMilli() > ms
}

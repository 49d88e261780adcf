// Package pool carries tickets from drafters and gateway to the verifier through NATS. A ticket that is lost, doubled or
// late costs time, never correctness.
//
// Each verifier takes requests on a subject of its own, its queue, and replies whether it had room: a ticket is worth nothing to a verifier
// that does not hold its session. A ticket whose sender knows no queue goes to a subject that all verifiers of the pool share.
// The pool's queue is the verifier's own: the tickets that wait there for a pass, at most verifier.Config.MaxWaiting, whichever way
// they came (verifier.Verifier.Submit). So there is one queue with one bound; a queue in the NATS server or a channel would hold as many
// again before a sender paused. The queue is not a JetStream stream either, because a ticket is worthless without the process that
// holds its session: a stream would keep useless tickets, and cost a round about 0.15 ms more (docs/decisions.md).
//
// A tree travels by a handle of the sender's shared memory if the verifier has that mapped, else inside its ticket
// (services/peers/trees). The sender's trace and the ticket's deadline travel in message headers.
package pool

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem"
)

const (
	op = "pool"

	headerTrace    = "traceparent"
	headerDeadline = "tandem-deadline" // Unix milliseconds after which the ticket is not worth a pass
	headerClock    = "tandem-clock"    // boot id of the host whose clock the deadline refers to

	replyOK   = "ok"
	replyFull = "full"

	dialTime = time.Second // to connect
)

// Config is what publishers and consumers of one pool share. Zero fields take the default named beside
// them.
type Config struct {
	Access
	Name     string           // subject prefix: "tandem-drafts"
	Counters *tandem.Counters // "tickets.<what>"; may be nil
	Log      *slog.Logger     // for a server that refuses this process; nil discards
	Now      func() time.Time // the wall clock, by which tickets expire: time.Now
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "tandem-drafts"
	}
	if c.Counters == nil {
		c.Counters = new(tandem.Counters)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// tickets returns the subject of the tickets of a queue, "" for that which all verifiers share.
func (c Config) tickets(queue string) string {
	if queue != "" {
		queue = "." + queue
	}
	return c.Subject("ticket") + queue
}

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
	if strings.ContainsAny(c.Name, " .*>/\\\t\r\n") {
		return tandem.Errorf(op, tandem.Invalid, "name %q: want no space and none of . * > / \\", c.Name)
	}
	return nil
}

// Subject returns the NATS subject of this pool's messages of that kind, such as "ticket".
func (c Config) Subject(kind string) string { return c.withDefaults().Name + "." + kind }

// Conn is a connection to the pool's NATS server that knows, without waiting, whether it is connected: the
// client's own IsConnected waits while it tries a server that does not answer.
type Conn struct {
	*nats.Conn
	up atomic.Bool
}

// Connected reports whether the server was reachable when last heard of.
func (c *Conn) Connected() bool { return c.up.Load() }

// Connect returns a connection to the pool's server for another purpose. It never gives up trying, so
// the server may start later or come back, and calls connected, in the connection's own goroutine,
// whenever it is connected; nothing is buffered while it is not. The caller closes it. Errors: Invalid.
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
		nats.ErrorHandler(c.denials(role)),
		nats.ReconnectErrHandler(c.refusals(role)),
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

// refusals returns a handler that logs, once for each connection, that the server refuses this process.
func (c Config) refusals(role string) nats.ConnErrHandler {
	var once sync.Once
	return func(_ *nats.Conn, err error) {
		if errors.Is(err, nats.ErrAuthorization) {
			once.Do(func() {
				c.Log.Warn("the pool's server does not let this process in: want the token that it has, by its file (--pool file:PATH), "+
					"in the URL, or by the same --secret-file; and under TLS a certificate that names this process's role",
					"server", c.where(), "connection", role, "role", c.Role)
			})
		}
	}
}

// denials returns a handler that counts what the server does not allow this process, and logs it once for each connection.
func (c Config) denials(role string) nats.ErrHandler {
	var once sync.Once
	return func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			c.Counters.Add("pool.denied", 1)
			once.Do(func() {
				c.Log.Warn("the pool's server does not allow this process what it needs: want the rights that tandem nats-config prints",
					"server", c.where(), "connection", role, "role", c.Role, "error", err)
			})
		}
	}
}

// redact removes a password or token from a NATS URL for use in a message.
func redact(u string) string {
	if i, j := strings.Index(u, "://"), strings.LastIndex(u, "@"); i >= 0 && j > i {
		return u[:i+3] + "…" + u[j:]
	}
	return u
}

// poolError returns an error of the NATS client with its kind.
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

// expired reports whether a ticket's deadline has passed, as far as this host can tell.
func expired(h nats.Header, clock string, now time.Time) bool {
	if clock == "" || h.Get(headerClock) != clock {
		return false
	}
	ms, err := strconv.ParseInt(h.Get(headerDeadline), 10, 64)
	return err == nil && now.UnixMilli() > ms
}

package pool

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/wire"
)

// DefaultInline is the usual PublisherConfig.Inline: bytes of an encoded tree that travel faster
// inside a ticket than through a claim.
const DefaultInline = 1 << 10

// fullPause is the first wait for a pool that says it is full.
const fullPause = 200 * time.Microsecond

// PublisherConfig describes a sender of tickets.
type PublisherConfig struct {
	Config
	Segment *shm.Owner    // for larger trees; nil: every tree travels inside its ticket
	Inline  int           // largest encoded tree, in bytes, inside a ticket; 0: none, if there is a Segment
	Wait    time.Duration // longest Put: 500 ms
	Worth   time.Duration // after which nobody waits for a ticket's verdict any more: 30 s
}

// Publisher implements tandem.Pool over NATS. Safe for concurrent use.
type Publisher struct {
	cfg   PublisherConfig
	clock string
	conn  *nats.Conn
	js    jetstream.JetStream
}

// NewPublisher connects in the background: until the server is there, Put answers Unavailable. The
// caller must Close it. Errors: Invalid.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	cfg.Config = cfg.Config.withDefaults()
	if err := cfg.Config.validate(); err != nil {
		return nil, err
	}
	if cfg.Wait == 0 {
		cfg.Wait = 500 * time.Millisecond
	}
	if cfg.Worth == 0 {
		cfg.Worth = 30 * time.Second
	}
	nc, js, err := cfg.connect("publisher", func() {})
	if err != nil {
		return nil, err
	}
	return &Publisher{cfg: cfg, clock: clock(), conn: nc, js: js}, nil
}

// Close gives the connection back. Puts in progress fail.
func (p *Publisher) Close() { p.conn.Close() }

// Connected reports whether the server is reachable now.
func (p *Publisher) Connected() bool { return p.conn.IsConnected() }

// Put implements tandem.Pool.Put.
func (p *Publisher) Put(ctx context.Context, t tandem.Ticket) error {
	if !p.conn.IsConnected() {
		return tandem.Errorf(op, tandem.Unavailable, "not connected to nats server %s", redact(p.cfg.URL))
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Wait)
	defer cancel()
	e, err := p.envelope(t)
	if err != nil {
		return err
	}
	data, err := e.Marshal()
	if err == nil {
		err = p.publish(ctx, data, t.Trace)
	}
	if err != nil && e.Handle.Segment != 0 {
		p.cfg.Segment.Release(e.Handle)
	}
	return err
}

// envelope puts t's tree where it travels.
func (p *Publisher) envelope(t tandem.Ticket) (wire.Envelope, error) {
	e := wire.Envelope{Ticket: t}
	payload, err := wire.MarshalTree(t.Tree)
	if err != nil || p.cfg.Segment == nil || (len(payload) <= p.cfg.Inline && p.cfg.Inline > 0) {
		return e, err
	}
	h, err := p.cfg.Segment.Put(payload)
	if err != nil { // every slot is leased, or the tree is larger than one: it may still fit the ticket
		p.cfg.Counters.Add("tickets.no_slot", 1)
		return e, nil
	}
	e.Handle = h
	return e, nil
}

// publish sends one message and waits until the stream has it.
func (p *Publisher) publish(ctx context.Context, data []byte, trace string) error {
	h := nats.Header{headerClock: {p.clock}, headerDeadline: {strconv.FormatInt(time.Now().Add(p.cfg.Worth).UnixMilli(), 10)}}
	if trace != "" {
		h[headerTrace] = []string{trace}
	}
	m := &nats.Msg{Subject: p.cfg.subject(), Data: data, Header: h}
	err := p.send(ctx, m)
	// The server works acknowledgements off in the background: a pool that was just emptied may still
	// count as full for a moment.
	for wait := fullPause; wait <= 8*fullPause && errors.Is(err, tandem.Exhausted); wait *= 2 {
		time.Sleep(wait)
		err = p.send(ctx, m)
	}
	switch tandem.KindOf(err) {
	case tandem.OK:
		p.cfg.Counters.Add("tickets.put", 1)
	case tandem.Exhausted:
		p.cfg.Counters.Add("tickets.pool_full", 1)
	}
	return err
}

// send publishes m once, making the stream if a server that has just started holds none.
func (p *Publisher) send(ctx context.Context, m *nats.Msg) error {
	_, err := p.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		if _, err = p.cfg.stream(ctx, p.js); err == nil {
			_, err = p.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
		}
	}
	return poolError(err)
}

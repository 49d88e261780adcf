package pool

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/wire"
)

// DefaultInline is the usual PublisherConfig.Inline: bytes of an encoded tree that travel faster
// inside a ticket than through a claim.
const DefaultInline = 1 << 10

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
	conn  *Conn
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
	nc, err := cfg.connect("publisher", func() {})
	if err != nil {
		return nil, err
	}
	return &Publisher{cfg: cfg, clock: clock(), conn: nc}, nil
}

// Close gives the connection back. Puts in progress fail.
func (p *Publisher) Close() { p.conn.Close() }

// Connected reports whether the server is reachable now.
func (p *Publisher) Connected() bool { return p.conn.Connected() }

// Put implements tandem.Pool.Put.
func (p *Publisher) Put(ctx context.Context, t tandem.Ticket) error {
	if !p.conn.Connected() {
		return tandem.Errorf(op, tandem.Unavailable, "not connected to nats server %s", p.cfg.where())
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

// publish sends one message and waits until a verifier has it in its queue.
func (p *Publisher) publish(ctx context.Context, data []byte, trace string) error {
	h := nats.Header{headerClock: {p.clock}, headerDeadline: {strconv.FormatInt(time.Now().Add(p.cfg.Worth).UnixMilli(), 10)}}
	if trace != "" {
		h[headerTrace] = []string{trace}
	}
	reply, err := p.request(ctx, &nats.Msg{Subject: p.cfg.subject(), Data: data, Header: h})
	if err != nil {
		return poolError(err)
	}
	if string(reply.Data) != replyOK {
		p.cfg.Counters.Add("tickets.pool_full", 1)
		return tandem.Errorf(op, tandem.Exhausted, "pool is full: wait for the verifier")
	}
	p.cfg.Counters.Add("tickets.put", 1)
	return nil
}

// answerTime is the first wait for a reply, which takes well under a millisecond on one host.
const answerTime = 20 * time.Millisecond

// request sends m until a reply comes or ctx ends, waiting twice as long each time: whether the message or
// the reply was lost, a verifier answers a ticket that it has already like a new one.
func (p *Publisher) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	for wait := answerTime; ; wait *= 2 {
		attempt, cancel := context.WithTimeout(ctx, wait)
		reply, err := p.conn.RequestMsgWithContext(attempt, m)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return reply, err
		}
		p.cfg.Counters.Add("tickets.resent", 1)
	}
}

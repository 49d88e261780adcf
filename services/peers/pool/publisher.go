package pool

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/trees"
)

// PublisherConfig describes a sender of tickets. Zero fields take the default named beside them.
type PublisherConfig struct {
	Config
	Trees  *trees.Writer // nil: every tree travels inside its ticket
	Wait   time.Duration // longest Put: 500 ms
	Answer time.Duration // after it a ticket without a reply is sent again; doubles each time: 20 ms. On one host a reply takes less than 1
	Worth  time.Duration // after it a ticket has expired, because nobody waits for its verdict any more: 30 s
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
	if cfg.Answer == 0 {
		cfg.Answer = 20 * time.Millisecond
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
	if err := (tandem.Place{Queue: t.Queue}).Validate(); err != nil {
		return err
	}
	e, err := p.cfg.Trees.Envelope(t)
	if err != nil {
		return err
	}
	data, err := e.Marshal()
	if err == nil {
		err = p.publish(ctx, t.Queue, data, t.Trace)
	}
	if err != nil {
		p.cfg.Trees.Release(e.Handle)
	}
	return err
}

// Inline returns a pool whose trees all travel inside their tickets, for a verifier that cannot read this process's memory.
func (p *Publisher) Inline() tandem.Pool {
	cfg := p.cfg
	cfg.Trees = nil
	return &Publisher{cfg: cfg, clock: p.clock, conn: p.conn}
}

// publish sends one message and waits until a verifier has taken it.
func (p *Publisher) publish(ctx context.Context, queue string, data []byte, trace string) error {
	h := nats.Header{headerClock: {p.clock}, headerDeadline: {strconv.FormatInt(p.cfg.Now().Add(p.cfg.Worth).UnixMilli(), 10)}}
	if trace != "" {
		h[headerTrace] = []string{trace}
	}
	reply, err := p.request(ctx, &nats.Msg{Subject: p.cfg.tickets(queue), Data: data, Header: h})
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

// request sends m until a reply comes or ctx ends, waiting twice as long each time. It does not matter whether the
// message or the reply was lost: a verifier answers a repeated ticket like a new one.
func (p *Publisher) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	for wait := p.cfg.Answer; ; wait *= 2 {
		attempt, cancel := context.WithTimeout(ctx, wait)
		reply, err := p.conn.RequestMsgWithContext(attempt, m)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return reply, err
		}
		p.cfg.Counters.Add("tickets.resent", 1)
	}
}

package pool

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/wire"
)

// Claimer obtains payloads that were too large for a ticket.
type Claimer interface {
	// Claim returns the payload of h, which the named drafter holds; the payload is the caller's. Errors:
	// Stale (the drafter no longer holds it), Corrupt (out of bounds), Unavailable, Deadline.
	Claim(ctx context.Context, drafter string, h shm.Handle) ([]byte, error)
}

// SourceConfig describes the verifier's end of a pool. Zero fields take the default named beside them.
type SourceConfig struct {
	Config
	Claimer   Claimer       // nil: larger trees are not obtained
	ClaimTime time.Duration // for the claims of one Take together: 100 ms
	MaxNodes  int           // largest valid tree: tandem.DefaultLimits.Nodes
	Vocab     int           // tokens must be below it: no limit
}

// Source implements tandem.TicketSource over NATS.
//
// One goroutine keeps a standing consumer; when the server has gone and comes back, empty or not, it
// makes stream and consumer again. Messages wait in a channel until Take acknowledges them, so the
// pool's limit counts them until then.
type Source struct {
	cfg      SourceConfig
	clock    string
	conn     *nats.Conn
	js       jetstream.JetStream
	messages chan jetstream.Msg
	restart  chan struct{} // holds one wish to consume anew
	cancel   context.CancelFunc
	closing  context.Context
	work     sync.WaitGroup
}

// NewSource connects in the background. The caller must Close it. Errors: Invalid.
func NewSource(cfg SourceConfig) (*Source, error) {
	cfg.Config = cfg.Config.withDefaults()
	if err := cfg.Config.validate(); err != nil {
		return nil, err
	}
	if cfg.ClaimTime == 0 {
		cfg.ClaimTime = 100 * time.Millisecond
	}
	if cfg.MaxNodes == 0 {
		cfg.MaxNodes = tandem.DefaultLimits.Nodes
	}
	if cfg.Vocab == 0 {
		cfg.Vocab = tandem.DefaultLimits.Vocab
	}
	s := &Source{cfg: cfg, clock: clock(), messages: make(chan jetstream.Msg, cfg.Batch), restart: make(chan struct{}, 1)}
	s.closing, s.cancel = context.WithCancel(context.Background())
	var err error
	if s.conn, s.js, err = cfg.connect("source", s.again); err != nil {
		s.cancel()
		return nil, err
	}
	s.work.Go(s.consume)
	return s, nil
}

// Close ends Take and the consumer, and waits for both.
func (s *Source) Close() {
	s.cancel()
	s.work.Wait()
	s.conn.Close()
}

// Connected reports whether the server is reachable now.
func (s *Source) Connected() bool { return s.conn.IsConnected() }

// again asks consume to start over.
func (s *Source) again() {
	select {
	case s.restart <- struct{}{}:
	default:
	}
}

// consume keeps a consumer running until the source closes.
func (s *Source) consume() {
	const pause = 50 * time.Millisecond // between attempts
	for s.closing.Err() == nil {
		if c, err := s.start(); err == nil {
			select {
			case <-s.restart:
				s.cfg.Counters.Add("pool.restarts", 1)
			case <-s.closing.Done():
			}
			c.Stop()
			<-c.Closed()
		}
		select {
		case <-time.After(pause):
		case <-s.closing.Done():
		}
	}
}

// start makes stream and consumer if they are missing, and consumes.
func (s *Source) start() (jetstream.ConsumeContext, error) {
	if !s.conn.IsConnected() {
		return nil, nats.ErrDisconnected
	}
	select {
	case <-s.restart: // what it asked for is done below
	default:
	}
	ctx, cancel := context.WithTimeout(s.closing, apiTime)
	defer cancel()
	stream, err := s.cfg.stream(ctx, s.js)
	if err != nil {
		return nil, err
	}
	consumer, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "verifier", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second,
		MaxAckPending: 4 * s.cfg.Batch, MemoryStorage: true,
	})
	if err != nil {
		return nil, err
	}
	return consumer.Consume(func(m jetstream.Msg) {
		select {
		case s.messages <- m:
		case <-s.closing.Done():
		}
	}, jetstream.PullMaxMessages(s.cfg.Batch), jetstream.PullExpiry(10*time.Second), jetstream.PullHeartbeat(time.Second),
		jetstream.ConsumeErrHandler(func(jetstream.ConsumeContext, error) { s.again() }))
}

// Take implements tandem.TicketSource.Take.
func (s *Source) Take(ctx context.Context, max int) ([]tandem.Ticket, error) {
	var got []wire.Envelope
	for len(got) == 0 {
		select {
		case m := <-s.messages:
			got = s.accept(got, m)
		case <-ctx.Done():
			return nil, tandem.Errorf(op, tandem.KindOf(ctx.Err()), "%w", ctx.Err())
		case <-s.closing.Done():
			return nil, tandem.Errorf(op, tandem.Unavailable, "ticket source is closed")
		}
		for more := true; more && len(got) < max; {
			select {
			case m := <-s.messages:
				got = s.accept(got, m)
			default:
				more = false
			}
		}
	}
	return s.obtain(ctx, got), nil
}

// accept acknowledges m and appends its ticket to got, unless it is garbage or too old: that is counted.
func (s *Source) accept(got []wire.Envelope, m jetstream.Msg) []wire.Envelope {
	_ = m.Ack() // a ticket taken twice is harmless
	e, err := wire.UnmarshalEnvelope(m.Data())
	if err == nil && e.Handle == (shm.Handle{}) {
		err = e.Ticket.Tree.Validate(s.cfg.MaxNodes, s.cfg.Vocab)
	}
	switch {
	case err != nil:
		s.cfg.Counters.Add("tickets.garbage", 1)
		return got
	case expired(m.Headers(), s.clock, time.Now()):
		s.cfg.Counters.Add("tickets.expired", 1)
		return got
	}
	s.cfg.Counters.Add("tickets.taken", 1)
	e.Ticket.Trace = m.Headers().Get(headerTrace)
	return append(got, e)
}

// obtain claims the trees that are not inside their tickets, all at once.
func (s *Source) obtain(ctx context.Context, got []wire.Envelope) []tandem.Ticket {
	tickets := make([]tandem.Ticket, len(got))
	var claims []int
	for i := range got {
		tickets[i] = got[i].Ticket
		if got[i].Handle != (shm.Handle{}) {
			claims = append(claims, i)
		}
	}
	if len(claims) == 0 {
		return tickets
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ClaimTime)
	defer cancel()
	var all sync.WaitGroup
	for _, i := range claims[1:] {
		all.Go(func() { tickets[i].Tree = s.claim(ctx, got[i]) })
	}
	first := claims[0]
	tickets[first].Tree = s.claim(ctx, got[first])
	all.Wait()
	return tickets
}

// claim returns e's tree, or the zero Tree with the reason counted.
func (s *Source) claim(ctx context.Context, e wire.Envelope) tandem.Tree {
	tree, err := s.fetch(ctx, e)
	switch tandem.KindOf(err) {
	case tandem.OK:
		s.cfg.Counters.Add("tickets.claimed", 1)
		return tree
	case tandem.Stale:
		s.cfg.Counters.Add("tickets.stale_handle", 1)
	case tandem.Corrupt, tandem.Invalid:
		s.cfg.Counters.Add("tickets.garbage", 1)
	default:
		s.cfg.Counters.Add("tickets.claim_failed", 1)
	}
	return tandem.Tree{}
}

func (s *Source) fetch(ctx context.Context, e wire.Envelope) (tandem.Tree, error) {
	if s.cfg.Claimer == nil {
		return tandem.Tree{}, tandem.Errorf(op, tandem.Unavailable, "no drafter to claim from")
	}
	payload, err := s.cfg.Claimer.Claim(ctx, e.Ticket.Drafter, e.Handle)
	if err != nil {
		return tandem.Tree{}, err
	}
	tree, err := wire.UnmarshalTree(payload)
	if err != nil {
		return tandem.Tree{}, err
	}
	return tree, tree.Validate(s.cfg.MaxNodes, s.cfg.Vocab)
}

package pool

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

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

// Source implements tandem.TicketSource over NATS. It is the pool's queue: messages wait here until
// Take, and senders are told when there is no room.
type Source struct {
	cfg      SourceConfig
	clock    string
	conn     *Conn
	messages chan arrival
	cancel   context.CancelFunc
	closing  context.Context
}

// arrival is a message and when it came.
type arrival struct {
	*nats.Msg
	at time.Time
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
	s := &Source{cfg: cfg, clock: clock(), messages: make(chan arrival, cfg.Batch)}
	var err error
	if s.conn, err = cfg.connect("source", func() {}); err != nil {
		return nil, err
	}
	// The client subscribes again by itself whenever it is connected again.
	if _, err = s.conn.QueueSubscribe(cfg.subject(), "verifiers", s.queue); err != nil {
		s.conn.Close()
		return nil, tandem.Errorf(op, tandem.Internal, "subscribe to %s: %w", cfg.subject(), err)
	}
	s.closing, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Close ends Take. What is in the queue is lost.
func (s *Source) Close() {
	s.cancel()
	s.conn.Close()
}

// Depth returns how many tickets wait now.
func (s *Source) Depth() int { return len(s.messages) }

// Connected reports whether the server is reachable now.
func (s *Source) Connected() bool { return s.conn.Connected() }

// queue keeps m until it is taken, if there is room, and tells its sender.
func (s *Source) queue(m *nats.Msg) {
	reply := replyOK
	select {
	case s.messages <- arrival{m, time.Now()}:
	default:
		reply = replyFull
		s.cfg.Counters.Add("tickets.pool_full", 1)
	}
	if m.Reply != "" {
		_ = m.Respond([]byte(reply)) // a sender that hears nothing puts its ticket again
	}
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

// refused is the tree of a ticket whose own was garbage. The verifier answers it as such, so that its session need not
// wait for a verdict that never comes.
func refused() tandem.Tree { return tandem.Tree{Tokens: []tandem.Token{}} }

// accept appends m's ticket to got, unless nobody can tell whose it is or it is too old: that is counted, as are
// trees that are garbage.
func (s *Source) accept(got []wire.Envelope, m arrival) []wire.Envelope {
	e, err := wire.UnmarshalEnvelope(m.Data)
	if err == nil && e.Handle == (shm.Handle{}) {
		err = e.Ticket.Tree.Validate(s.cfg.MaxNodes, s.cfg.Vocab)
	}
	if err != nil && e.Ticket.Session != 0 {
		s.cfg.Counters.Add("tickets.garbage", 1)
		e.Ticket.Tree, e.Handle, err = refused(), shm.Handle{}, nil
	}
	now := time.Now()
	switch {
	case err != nil:
		s.cfg.Counters.Add("tickets.garbage", 1)
		return got
	case now.Sub(m.at) > s.cfg.MaxAge || expired(m.Header, s.clock, now):
		s.cfg.Counters.Add("tickets.expired", 1)
		return got
	}
	s.cfg.Counters.Add("tickets.taken", 1)
	s.cfg.Counters.Add("tickets.waited_us", now.Sub(m.at).Microseconds())
	e.Ticket.Trace = m.Header.Get(headerTrace)
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

// claim returns e's tree, or the zero Tree if it was not to be had, with the reason counted.
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
		return refused()
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

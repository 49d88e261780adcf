package pool

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/trees"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// Fetcher gets the trees that a verifier cannot read in shared memory: those in a segment that it has not mapped, such as when several
// verifiers share the pool and the drafter has seen another one; and those of a drafter on another host that do not fit into a ticket
// (wire.MaxEnvelope), which takes a tree larger than tandem.DefaultLimits allow. All other trees need no call.
type Fetcher interface {
	// Fetch returns the payload of h, which the named drafter holds; the payload is the caller's. Errors:
	// Stale (the drafter no longer holds it), Corrupt (out of bounds), Unavailable, Deadline.
	Fetch(ctx context.Context, drafter string, h shm.Handle) ([]byte, error)
}

// ConsumerConfig describes the verifier's end of a pool. Zero fields take the default named beside them.
type ConsumerConfig struct {
	Config
	// Submit hands a ticket to the verifier (verifier.Verifier.Submit). It must not block. Errors: Exhausted (as many
	// wait as may: the pool's bound), Unavailable. Trees are validated (Tree.Validate); a ticket whose tree
	// could not be obtained has Tree.Tokens == nil, and one whose tree was garbage has Tokens that are empty but not nil.
	Submit    func(context.Context, tandem.Ticket) error
	Segments  *shm.Set      // for reading trees; nil: none
	Fetcher   Fetcher       // for other trees; nil: their tickets have none
	FetchTime time.Duration // longest fetch of a tree: 100 ms
	MaxNodes  int           // largest valid tree: tandem.DefaultLimits.Nodes
	Vocab     int           // token ids must be below it: tandem.DefaultLimits.Vocab
	Queue     string        // name of the verifier's own subject, beside the one that all share; "": none
}

// mostFetches is how many trees are fetched at once; tickets beyond them are refused as if the pool were full.
const mostFetches = 32

// Consumer takes tickets from NATS and hands them to a verifier at once; none waits here. It tells senders whether there was room.
type Consumer struct {
	cfg      ConsumerConfig
	clock    string
	conn     *Conn
	fetches  chan struct{} // one for each in progress
	work     sync.WaitGroup
	starting sync.Mutex // held to begin work, and to end all work
	closing  context.Context
	cancel   context.CancelFunc
}

// NewConsumer returns a consumer that connects in the background, and again whenever the server comes back. The caller must Close it,
// before what Submit belongs to. Errors: Invalid.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	cfg.Config = cfg.Config.withDefaults()
	if err := cmp.Or(cfg.Config.validate(), (tandem.Place{Queue: cfg.Queue}).Validate()); err != nil {
		return nil, err
	}
	if cfg.FetchTime == 0 {
		cfg.FetchTime = 100 * time.Millisecond
	}
	if cfg.MaxNodes == 0 {
		cfg.MaxNodes = tandem.DefaultLimits.Nodes
	}
	if cfg.Vocab == 0 {
		cfg.Vocab = tandem.DefaultLimits.Vocab
	}
	if cfg.Segments == nil {
		cfg.Segments = new(shm.Set)
	}
	s := &Consumer{cfg: cfg, clock: clock(), fetches: make(chan struct{}, mostFetches)}
	s.closing, s.cancel = context.WithCancel(context.Background())
	var err error
	if s.conn, err = cfg.connect("source", func() {}); err != nil {
		return nil, err
	}
	subjects := []string{cfg.tickets("")}
	if cfg.Queue != "" {
		subjects = append(subjects, cfg.tickets(cfg.Queue))
	}
	for _, subject := range subjects {
		// The client subscribes again by itself whenever it is connected again.
		if _, err = s.conn.QueueSubscribe(subject, "verifiers", s.take); err != nil {
			s.conn.Close()
			return nil, tandem.Errorf(op, tandem.Internal, "subscribe to %s: %w", subject, err)
		}
	}
	return s, nil
}

// Close takes no more tickets, cancels fetches in progress and waits for them.
func (s *Consumer) Close() {
	s.starting.Lock()
	s.cancel()
	s.starting.Unlock()
	s.conn.Close()
	s.work.Wait()
}

// start runs fetch beside the messages, unless the consumer is being closed: Close waits for no work that begins while it waits.
func (s *Consumer) start(fetch func()) {
	s.starting.Lock()
	defer s.starting.Unlock()
	if s.closing.Err() == nil {
		s.work.Go(fetch)
	}
}

// refused replaces a tree that was garbage. The verifier refuses it in a verdict, so that its session does not
// wait in vain.
func refused() tandem.Tree { return tandem.Tree{Tokens: []tandem.Token{}} }

// take hands m's ticket to the verifier and tells its sender whether there was room. A tree that must be fetched is awaited in
// another goroutine, because this one handles all messages. Its sender gets its reply before, else it would put the ticket again; if
// there is no room later, the ticket is lost.
func (s *Consumer) take(m *nats.Msg) {
	e, ok := s.accept(m)
	switch {
	case !ok:
		s.reply(m, replyOK) // a sender of garbage need not send it again
	case e.Handle == (shm.Handle{}):
		s.submit(m, e.Ticket)
	default:
		tree, err := tandem.Tree{}, error(nil)
		if e.Lease > 0 {
			if tree, err = trees.Read(s.cfg.Segments, e.Handle); tandem.KindOf(err) != tandem.Unavailable {
				e.Ticket.Tree = s.judge(tree, err, "tickets.mapped")
				s.submit(m, e.Ticket)
				return
			}
		}
		select {
		case s.fetches <- struct{}{}:
		default:
			s.full(m)
			return
		}
		s.reply(m, replyOK)
		m.Reply = ""
		s.start(func() {
			defer func() { <-s.fetches }()
			ctx, cancel := context.WithTimeout(s.closing, s.cfg.FetchTime)
			defer cancel()
			tree, err := s.fetch(ctx, e)
			e.Ticket.Tree = s.judge(tree, err, "tickets.claimed")
			s.submit(m, e.Ticket)
		})
	}
}

// submit hands a ticket over. There is no reply if the verifier is stopping: the sender tries again, and finds another.
func (s *Consumer) submit(m *nats.Msg, t tandem.Ticket) {
	switch err := s.cfg.Submit(s.closing, t); tandem.KindOf(err) {
	case tandem.OK:
		s.cfg.Counters.Add("tickets.taken", 1)
		s.reply(m, replyOK)
	case tandem.Exhausted:
		s.full(m)
	}
}

func (s *Consumer) full(m *nats.Msg) {
	s.cfg.Counters.Add("tickets.pool_full", 1)
	s.reply(m, replyFull)
}

func (s *Consumer) reply(m *nats.Msg, what string) {
	if m.Reply != "" {
		_ = m.Respond([]byte(what)) // a sender without a reply puts its ticket again
	}
}

// accept decodes m's ticket. It counts and drops a ticket that cannot be decoded or is too old, and counts
// trees that are garbage.
func (s *Consumer) accept(m *nats.Msg) (wire.Envelope, bool) {
	e, err := wire.UnmarshalEnvelope(m.Data)
	if err == nil && e.Handle == (shm.Handle{}) {
		err = e.Ticket.Tree.Validate(s.cfg.MaxNodes, s.cfg.Vocab)
	}
	if err != nil && e.Ticket.Session != 0 {
		s.cfg.Counters.Add("tickets.garbage", 1)
		e.Ticket.Tree, e.Handle, err = refused(), shm.Handle{}, nil
	}
	switch {
	case tandem.KindOf(err) == tandem.Unsupported:
		s.cfg.Counters.Add("refused.protocol", 1)
		return e, false
	case err != nil:
		s.cfg.Counters.Add("tickets.garbage", 1)
		return e, false
	case expired(m.Header, s.clock, s.cfg.Now()):
		s.cfg.Counters.Add("tickets.expired", 1)
		return e, false
	}
	e.Ticket.Trace = m.Header.Get(headerTrace)
	return e, true
}

// fetch asks the drafter of e for its tree.
func (s *Consumer) fetch(ctx context.Context, e wire.Envelope) (tandem.Tree, error) {
	if s.cfg.Fetcher == nil {
		return tandem.Tree{}, tandem.Errorf(op, tandem.Unavailable, "no drafter to fetch from")
	}
	payload, err := s.cfg.Fetcher.Fetch(ctx, e.Ticket.Drafter, e.Handle)
	if err != nil {
		return tandem.Tree{}, err
	}
	return wire.UnmarshalTree(payload)
}

// judge returns a tree that came by a handle, or the zero Tree if it could not be obtained, and counts how it came or why it did not.
func (s *Consumer) judge(tree tandem.Tree, err error, how string) tandem.Tree {
	if err == nil {
		err = tree.Validate(s.cfg.MaxNodes, s.cfg.Vocab)
	}
	switch tandem.KindOf(err) {
	case tandem.OK:
		s.cfg.Counters.Add(how, 1)
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

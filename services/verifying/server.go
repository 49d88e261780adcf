// Package verifying puts a tandem.Verifier and its verdicts on the wire: Server serves one, Client is
// one whose verifying happens in another process.
package verifying

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/wire"
)

const (
	op = "verifying"

	maxSend = 64 // verdicts in one message
)

// Config is what a verifier process serves.
type Config struct {
	Verifier tandem.Verifier
	Describe func() wire.Description // called for every Describe
	Buffer   int                     // verdicts that a subscriber may lag behind: 256
	Counters *tandem.Counters        // "verdicts.cut_off": subscribers that lagged further, "tickets.<what>"; may be nil

	// Submit takes a ticket that came past the pool, without waiting; nil: none are taken. Errors: Exhausted
	// (a full batch waits already), Unavailable. It gets valid tickets only.
	Submit   func(context.Context, tandem.Ticket) error
	MaxNodes int // largest valid tree: tandem.DefaultLimits.Nodes
	Vocab    int // tokens must be below it: no limit
}

// Server serves a verifier. Its Deliver takes the verdicts and gives each to every subscriber.
type Server struct {
	cfg Config

	mu     sync.Mutex
	subs   map[*subscription]struct{}
	closed bool
}

// subscription is one Verdicts stream. Its channel is closed, under Server.mu, when the server closes
// or the subscriber is cut off.
type subscription struct {
	verdicts chan *peerv1.Verdict
	slow     bool // set before the channel closes
}

// NewServer returns a server of cfg.
func NewServer(cfg Config) *Server {
	if cfg.Buffer == 0 {
		cfg.Buffer = 256
	}
	if cfg.Counters == nil {
		cfg.Counters = new(tandem.Counters)
	}
	if cfg.MaxNodes == 0 {
		cfg.MaxNodes = tandem.DefaultLimits.Nodes
	}
	if cfg.Vocab == 0 {
		cfg.Vocab = tandem.DefaultLimits.Vocab
	}
	return &Server{cfg: cfg, subs: map[*subscription]struct{}{}}
}

// Register serves s on r.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	peerv1.RegisterVerifierServiceServer(r, &adapter{s: s})
}

// Deliver gives v to every subscriber without waiting; one that lags too far behind is cut off.
// Safe for concurrent use.
func (s *Server) Deliver(v tandem.Verdict) {
	m := wire.FromVerdict(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	for sub := range s.subs {
		select {
		case sub.verdicts <- m:
		default:
			s.cfg.Counters.Add("verdicts.cut_off", 1)
			sub.slow = true
			s.end(sub)
		}
	}
}

// Close ends every subscription, and those that come later at once: use it as rpc.Config.Drain.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for sub := range s.subs {
		s.end(sub)
	}
}

// subscribe returns a new subscription, ended already if the server is closed.
func (s *Server) subscribe() *subscription {
	sub := &subscription{verdicts: make(chan *peerv1.Verdict, s.cfg.Buffer)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs[sub] = struct{}{}
	if s.closed {
		s.end(sub)
	}
	return sub
}

func (s *Server) unsubscribe(sub *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(sub)
}

// end ends sub if it has not ended. Called with s.mu held.
func (s *Server) end(sub *subscription) {
	if _, there := s.subs[sub]; there {
		delete(s.subs, sub)
		close(sub.verdicts)
	}
}

// adapter serves the messages of a Server.
type adapter struct {
	peerv1.UnimplementedVerifierServiceServer
	s *Server
}

func (a *adapter) Open(ctx context.Context, r *peerv1.VerifierServiceOpenRequest) (*peerv1.VerifierServiceOpenResponse, error) {
	o, err := wire.ToOpening(r.GetOpening())
	if err != nil {
		return nil, err
	}
	o.Owner = rpc.Caller(ctx)
	opened, err := a.s.cfg.Verifier.Open(ctx, o)
	return &peerv1.VerifierServiceOpenResponse{Reused: int32(opened.Reused)}, err
}

func (a *adapter) Close(ctx context.Context, r *peerv1.VerifierServiceCloseRequest) (*peerv1.VerifierServiceCloseResponse, error) {
	return &peerv1.VerifierServiceCloseResponse{}, a.s.cfg.Verifier.Close(ctx, tandem.SessionID(r.GetSession()))
}

func (a *adapter) Describe(context.Context, *peerv1.VerifierServiceDescribeRequest) (*peerv1.VerifierServiceDescribeResponse, error) {
	return &peerv1.VerifierServiceDescribeResponse{Description: wire.FromDescription(a.s.cfg.Describe())}, nil
}

// Submit takes one ticket, checked like one from the pool.
func (a *adapter) Submit(ctx context.Context, r *peerv1.SubmitRequest) (*peerv1.SubmitResponse, error) {
	if a.s.cfg.Submit == nil {
		return nil, tandem.Errorf(op, tandem.Unsupported, "this verifier takes tickets from its pool alone")
	}
	t, err := a.s.ticket(r.GetTicket())
	if err != nil {
		a.s.cfg.Counters.Add("tickets.garbage", 1)
		return nil, err
	}
	t.Trace = rpc.Traceparent(ctx)
	if err := a.s.cfg.Submit(ctx, t); err != nil {
		return nil, err
	}
	a.s.cfg.Counters.Add("tickets.submitted", 1)
	return &peerv1.SubmitResponse{}, nil
}

// ticket decodes m. Errors: Corrupt, Unsupported, Invalid.
func (s *Server) ticket(m *peerv1.Ticket) (tandem.Ticket, error) {
	e, err := wire.ToEnvelope(m)
	switch {
	case err != nil:
		return tandem.Ticket{}, err
	case e.Handle.Segment != 0:
		return tandem.Ticket{}, tandem.Errorf(op, tandem.Invalid, "ticket of session %s has a handle: want its tree inside", e.Ticket.Session)
	}
	return e.Ticket, e.Ticket.Tree.Validate(s.cfg.MaxNodes, s.cfg.Vocab)
}

// Verdicts serves one subscriber until it leaves, lags or the server closes.
func (a *adapter) Verdicts(_ *peerv1.VerdictsRequest, stream grpc.ServerStreamingServer[peerv1.VerdictsResponse]) error {
	sub := a.s.subscribe()
	defer a.s.unsubscribe(sub)
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case v, ok := <-sub.verdicts:
			if !ok {
				return sub.reason()
			}
			if err := stream.Send(sub.gather(v)); err != nil {
				return err
			}
		}
	}
}

// gather returns v and what is there already after it.
func (sub *subscription) gather(v *peerv1.Verdict) *peerv1.VerdictsResponse {
	r := &peerv1.VerdictsResponse{Verdicts: []*peerv1.Verdict{v}}
	for len(r.Verdicts) < maxSend {
		select {
		case v, ok := <-sub.verdicts:
			if !ok {
				return r
			}
			r.Verdicts = append(r.Verdicts, v)
		default:
			return r
		}
	}
	return r
}

// reason says why a subscription whose channel is closed has ended.
func (sub *subscription) reason() error {
	if sub.slow {
		return tandem.Errorf(op, tandem.Exhausted, "subscriber lags %d verdicts behind", cap(sub.verdicts))
	}
	return tandem.Errorf(op, tandem.Unavailable, "verifier is stopping")
}

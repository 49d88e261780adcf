// Package verifying puts a tandem.Verifier on the wire: Server serves one, Client reaches one in another process. Follow keeps a
// subscription to a verifier's verdicts.
package verifying

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/draining"
	"github.com/tandem-llm/tandem/services/peers/holding"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/telemetry/traceparent"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

const op = "verifying"

// ServerConfig is what a verifier process serves.
type ServerConfig struct {
	Verifier tandem.Verifier
	Counters *tandem.Counters // "tickets.<what>", "sessions.foreign"; may be nil
	MaxNodes int              // largest valid tree of a ticket: tandem.DefaultLimits.Nodes
	Vocab    int              // token ids of trees must be below it: no limit

	Vectors  tandem.VectorSource  // nil: none are made
	Features tandem.FeatureSource // nil: none are handed out
	Segment  *shm.Segment         // for large answers with features, to drafters that have it mapped; nil: none. The caller owns it

	Announced func() wire.Announcement // what the process announces now, for Describe; nil: it does not announce itself
	Draining  func() bool              // whether it takes no new sessions; nil: it takes them

	// Map maps the segment that a subscriber on this host hands out at a socket, until unmap is called; nil: segments are not mapped.
	Map func(socket string) (unmap func())
}

// Server serves a verifier to other processes; each sees only its own sessions.
type Server struct {
	cfg    ServerConfig
	owners rpc.Owners
	life   context.Context // of the streams of verdicts
	end    context.CancelFunc
}

// NewServer returns a server of cfg's verifier, which stays the caller's. Close ends it.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Counters == nil {
		cfg.Counters = new(tandem.Counters)
	}
	if cfg.MaxNodes == 0 {
		cfg.MaxNodes = tandem.DefaultLimits.Nodes
	}
	if cfg.Vocab == 0 {
		cfg.Vocab = tandem.DefaultLimits.Vocab
	}
	s := &Server{cfg: cfg}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Register serves s on r, before r serves calls.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	peerv1.RegisterVerifierServiceServer(r, &adapter{s: s})
}

// Close ends every stream of verdicts; later ones end at once. Use it as rpc.ServerConfig.Drain.
func (s *Server) Close() { s.end() }

// Forget removes what the server holds of a process that is gone; its sessions at the verifier stay.
func (s *Server) Forget(process uint64) { s.owners.Forget(process) }

// adapter serves the messages of a Server.
type adapter struct {
	peerv1.UnimplementedVerifierServiceServer
	s *Server
}

func (a *adapter) Open(ctx context.Context, r *peerv1.VerifierServiceOpenRequest) (*peerv1.VerifierServiceOpenResponse, error) {
	return a.open(ctx, r.GetOpening(), nil)
}

func (a *adapter) Hold(r *peerv1.VerifierServiceHoldRequest, stream grpc.ServerStreamingServer[peerv1.VerifierServiceHoldResponse]) error {
	return holding.Serve(stream, func(p tandem.Progress) *peerv1.VerifierServiceHoldResponse {
		return &peerv1.VerifierServiceHoldResponse{State: &peerv1.VerifierServiceHoldResponse_Progress{Progress: wire.FromProgress(p)}}
	}, func(ctx context.Context, told func(tandem.Progress)) (*peerv1.VerifierServiceHoldResponse, error) {
		opened, err := a.open(ctx, r.GetOpening(), told)
		return &peerv1.VerifierServiceHoldResponse{State: &peerv1.VerifierServiceHoldResponse_Opened{Opened: opened}}, err
	})
}

// open has the verifier hold a session of the caller's; told is told the progress, if it is not nil.
func (a *adapter) open(ctx context.Context, m *peerv1.Opening, told func(tandem.Progress)) (*peerv1.VerifierServiceOpenResponse, error) {
	o, err := wire.ToOpening(m)
	if err != nil {
		return nil, err
	}
	o.Progress = told
	if o.Owner, err = a.s.owners.Caller(ctx); err != nil {
		return nil, err
	}
	if a.s.cfg.Draining != nil && a.s.cfg.Draining() && a.s.owners.Check(o.Session, o.Owner) != nil {
		return nil, draining.Refuse("verifier")
	}
	done, err := a.s.owners.Open(o.Session, o.Owner)
	if err != nil {
		return nil, a.s.foreign(err)
	}
	opened, err := a.s.cfg.Verifier.Open(ctx, o)
	done(err == nil)
	return &peerv1.VerifierServiceOpenResponse{Reused: int32(opened.Reused), Cached: int32(opened.Cached),
		Identity: string(opened.Identity),
		Guesses:  wire.FromGuesses(opened.Guesses)}, err
}

func (a *adapter) Close(ctx context.Context, r *peerv1.VerifierServiceCloseRequest) (*peerv1.VerifierServiceCloseResponse, error) {
	id := tandem.SessionID(r.GetSession())
	if err := a.s.owners.Check(id, rpc.Caller(ctx)); err != nil {
		_ = a.s.foreign(err) // an unknown session is no error
		return &peerv1.VerifierServiceCloseResponse{}, nil
	}
	err := a.s.cfg.Verifier.Close(ctx, id)
	if err == nil {
		a.s.owners.Close(id, rpc.Caller(ctx))
	}
	return &peerv1.VerifierServiceCloseResponse{}, err
}

// foreign counts a call for a session that is not the caller's, and returns its error.
func (s *Server) foreign(err error) error {
	s.cfg.Counters.Add("sessions.foreign", 1)
	return err
}

func (a *adapter) Describe(ctx context.Context, _ *peerv1.VerifierServiceDescribeRequest) (*peerv1.VerifierServiceDescribeResponse, error) {
	d, err := a.s.cfg.Verifier.Describe(ctx)
	if err != nil {
		return nil, err
	}
	var as wire.Announcement
	if a.s.cfg.Announced != nil {
		as = a.s.cfg.Announced()
		d.Instance, d.Draining = as.Instance, as.Draining
	}
	return &peerv1.VerifierServiceDescribeResponse{Description: wire.FromDescription(d), Verifier: wire.FromVerifier(as.Verifier)}, nil
}

// Submit takes one ticket of the caller's session, checked like one from the pool.
func (a *adapter) Submit(ctx context.Context, r *peerv1.SubmitRequest) (*peerv1.SubmitResponse, error) {
	t, err := a.s.ticket(r.GetTicket())
	switch tandem.KindOf(err) {
	case tandem.OK:
	case tandem.Unsupported:
		a.s.cfg.Counters.Add("refused.protocol", 1)
		return nil, err
	default:
		a.s.cfg.Counters.Add("tickets.garbage", 1)
		return nil, err
	}
	if err := a.s.owners.Check(t.Session, rpc.Caller(ctx)); err != nil {
		return nil, a.s.foreign(err)
	}
	t.Trace = traceparent.Of(ctx)
	if err := a.s.cfg.Verifier.Submit(ctx, t); err != nil {
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
		return tandem.Ticket{}, tandem.Errorf(op, tandem.Invalid, "ticket of session %s has a handle: want its tree inside",
			e.Ticket.Session)
	}
	return e.Ticket, e.Ticket.Tree.Validate(s.cfg.MaxNodes, s.cfg.Vocab)
}

// Verdicts serves one subscriber until it leaves, lags or the server closes.
func (a *adapter) Verdicts(r *peerv1.VerdictsRequest, stream grpc.ServerStreamingServer[peerv1.VerdictsResponse]) error {
	process, err := a.s.owners.Caller(stream.Context())
	if err != nil {
		return err
	}
	asserted := wire.ToSessions(r.GetSessions())
	a.s.owners.Assert(asserted, process)
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(a.s.life, func() { cancel(tandem.Errorf(op, tandem.Unavailable, "verifier is stopping")) })()
	check := func(err error) {
		if err != nil {
			cancel(err)
		}
	}
	unmap := func() {}
	defer func() { unmap() }()
	err = a.s.cfg.Verifier.Verdicts(ctx, tandem.Subscription{Owner: process,
		Sessions: func() []tandem.SessionID {
			return slices.DeleteFunc(asserted, func(id tandem.SessionID) bool { return a.s.owners.Of(id) != process })
		},
		Began: func() {
			if socket := r.GetSegmentSocket(); socket != "" && a.s.cfg.Map != nil && here(ctx) {
				unmap = a.s.cfg.Map(socket)
			}
			check(stream.SendHeader(metadata.MD{}))
		},
		Deliver: func(all []tandem.Verdict) {
			m := &peerv1.VerdictsResponse{Verdicts: make([]*peerv1.Verdict, len(all))}
			for i, v := range all {
				m.Verdicts[i] = wire.FromVerdict(v)
			}
			check(stream.Send(m))
		}})
	return cmp.Or(context.Cause(ctx), err)
}

// here reports whether ctx's call came over a unix socket, so that a path names the same file on both ends.
func here(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	return ok && p.Addr != nil && p.Addr.Network() == "unix"
}

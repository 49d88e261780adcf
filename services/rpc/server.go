// Package rpc builds every gRPC server and connection of tandem: where to listen, message limits,
// keepalive, deadlines, panic recovery, trace propagation, and the one mapping between tandem.Error
// and google.rpc.Status. Adapters register on it; they hold no transport code of their own.
package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/tandem-llm/tandem"
)

// MaxMessage is the size limit of a message in bytes, in both directions.
const MaxMessage = 4 << 20

// Config describes one server. Zero durations take the default named beside them.
type Config struct {
	Listen         string           // "unix:///path" or "host:port"; port 0 lets the system choose
	Deadline       time.Duration    // of a unary call that came without one: 2 minutes
	StreamDeadline time.Duration    // of a stream that came without one: 2 hours
	Grace          time.Duration    // for calls in progress when Run's context ends: 2 s
	Drain          func()           // called first when Run's context ends: end standing streams; may be nil
	TLS            *Identity        // for mutual TLS where other machines reach the address; nil for none
	Insecure       bool             // other machines may reach the address although TLS is nil
	Log            *slog.Logger     // for panics; nil discards
	Counters       *tandem.Counters // "rpc.panics", "rpc.errors.<kind>"; may be nil
}

// Server is a gRPC server that listens already. Register services on it, then Run it.
type Server struct {
	cfg      Config
	listener net.Listener
	grpc     *grpc.Server
	health   *health.Server
	callers  *callers // nil: nobody wants to know
}

// NewServer listens and prepares a server; its health service answers NOT_SERVING until SetServing.
// Run, or Close if Run is never reached, gives the address back.
func NewServer(cfg Config) (*Server, error) {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&cfg.Deadline, 2 * time.Minute}, {&cfg.StreamDeadline, 2 * time.Hour}, {&cfg.Grace, 2 * time.Second}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Counters == nil {
		cfg.Counters = new(tandem.Counters)
	}
	if err := Guard(cfg.Listen, cfg.TLS, cfg.Insecure); err != nil {
		return nil, err
	}
	l, err := Listen(cfg.Listen)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if cfg.TLS != nil && !local(l) {
		creds = credentials.NewTLS(cfg.TLS.Server())
	}
	s := &Server{cfg: cfg, listener: l, health: health.NewServer()}
	s.grpc = grpc.NewServer(grpc.Creds(creds),
		grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(MaxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.ForceServerCodecV2(newCodec()), grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream), grpc.WaitForHandlers(true), grpc.NumStreamWorkers(4))
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	if local(l) {
		reflection.Register(s.grpc)
	}
	s.SetServing(false)
	return s, nil
}

// Registrar takes the services of the server; register before Run.
func (s *Server) Registrar() grpc.ServiceRegistrar { return s.grpc }

// Addr returns the address in the form that Dial takes, with the port that the system chose.
func (s *Server) Addr() string { return address(s.listener) }

// WhenGone has gone called with the number (see Caller) of each process that has called and then had no connection for 3 s:
// it has died, or will open a new one for new work. Call it before Run.
func (s *Server) WhenGone(gone func(process uint64)) {
	s.callers = &callers{after: goneAfter, gone: gone, of: map[uint64]*caller{}}
}

// SetServing sets what the health service answers.
func (s *Server) SetServing(up bool) {
	st := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if up {
		st = grpc_health_v1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", st)
}

// Run serves until ctx ends, then stops taking calls, lets those in progress finish for the grace
// time, cancels the rest, waits for their handlers and removes the socket. It returns nil after an
// end of ctx.
func (s *Server) Run(ctx context.Context) error {
	done, l := make(chan error, 1), s.listener
	if s.callers != nil {
		defer s.callers.close()
		l = &listener{l, s.callers}
	}
	go func() { done <- s.grpc.Serve(l) }()
	select {
	case err := <-done:
		s.grpc.Stop()
		return tandem.Errorf("serve", tandem.Unavailable, "%s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	s.health.Shutdown()
	if s.cfg.Drain != nil {
		s.cfg.Drain()
	}
	cut := time.AfterFunc(s.cfg.Grace, s.grpc.Stop)
	defer cut.Stop()
	s.grpc.GracefulStop()
	<-done
	return nil
}

// Close gives the address back of a server that was never run.
func (s *Server) Close() {
	s.grpc.Stop()
	_ = s.listener.Close()
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	s.callers.seen(ctx)
	ctx, cancel := withDeadline(extract(ctx), s.cfg.Deadline)
	defer cancel()
	defer func() { err = s.outcome(ctx, info.FullMethod, recover(), err) }()
	if err := decoded(req); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	s.callers.seen(ss.Context())
	ctx, cancel := withDeadline(extract(ss.Context()), s.cfg.StreamDeadline)
	defer cancel()
	defer func() { err = s.outcome(ctx, info.FullMethod, recover(), err) }()
	return handler(srv, &serverStream{ServerStream: ss, ctx: ctx})
}

// outcome turns a handler's panic or error into the status to send.
func (s *Server) outcome(ctx context.Context, method string, panicked any, err error) error {
	if panicked != nil {
		s.cfg.Counters.Add("rpc.panics", 1)
		s.cfg.Log.Error("panic in a request", "method", method, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
		err = tandem.Errorf("rpc", tandem.Internal, "%s: panic: %v", method, panicked)
	}
	if err == nil {
		return nil
	}
	err = ToStatus(contextError(ctx, err))
	s.cfg.Counters.Add("rpc.errors."+kindOfCode(status.Code(err)).String(), 1)
	return err
}

// serverStream carries the stream's own context and refuses undecodable requests.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

func (s *serverStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return decoded(m)
}

// withDeadline returns ctx with its own deadline, or with one after d.
func withDeadline(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// Package rpc builds every gRPC server and connection of tandem: where to listen, message limits,
// keepalive, deadlines, panic recovery, trace propagation, and the one mapping between tandem.Error
// and google.rpc.Status. Adapters register on it; they hold no transport code of their own.
package rpc

import (
	"context"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/tandem-llm/tandem"
)

// MaxMessage is the size limit of a message in bytes, in both directions.
const MaxMessage = 4 << 20

// ServerConfig describes one server. Zero values take the default named beside them.
type ServerConfig struct {
	Listen         string        // "unix:///path" or "host:port"; port 0 lets the system choose
	Deadline       time.Duration // of a unary call without one: 2 minutes
	StreamDeadline time.Duration // of a stream without one: 2 hours
	Grace          time.Duration // for calls in progress when Run's context ends: 2 s
	Drain          func()        // called first when Run's context ends: end standing streams; may be nil

	Internal bool         // it serves only tandem's processes, as Credentials and the table of roles say, and no reflection
	TLS      *Certificate // for mutual TLS where other machines reach the address; nil for none
	Insecure bool         // other machines may reach the address although TLS is nil
	Secret   *Secret      // callers of an internal server must show it on TCP without TLS

	Streams     int           // calls at once on one connection: 128, 1024 if internal
	Connections int           // 256, or a quarter of the files that the process may have open
	Receive     time.Duration // longest wait for the message of a call: 30 s; a connection must begin within a third of it
	Idle        time.Duration // a connection without a call for this long is closed: 5 minutes, never if internal

	Log      *slog.Logger     // for panics; nil discards
	Counters *tandem.Counters // "rpc.panics", "rpc.refused", "rpc.errors.<kind>", "refused.protocol", "rpc.connections.<what>"; may be nil
}

// beat is how long a connection may be silent before the other end is pinged, and answer how long the reply may
// take: a process that is stopped for some seconds keeps its connections.
const beat, answer = time.Minute, 20 * time.Second

// maxHeaders is the size limit of the headers of a call in bytes. A key has at most 4 KiB.
const maxHeaders = 32 << 10

// withDefaults fills in what is left out.
func (c ServerConfig) withDefaults() ServerConfig {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&c.Deadline, 2 * time.Minute}, {&c.StreamDeadline, 2 * time.Hour}, {&c.Grace, 2 * time.Second}, {&c.Receive, 30 * time.Second}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if c.Idle == 0 && !c.Internal { // processes keep their connections, which show who is there
		c.Idle = 5 * time.Minute
	}
	if c.Streams == 0 {
		if c.Streams = 128; c.Internal {
			c.Streams = 1024
		}
	}
	if c.Connections == 0 {
		c.Connections = Room(256, 4)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Counters == nil {
		c.Counters = new(tandem.Counters)
	}
	return c
}

// Server is a gRPC server that listens already. Register services on it, then Run it.
type Server struct {
	cfg      ServerConfig
	listener net.Listener
	unix     bool // listener's addresses are unix sockets
	grpc     *grpc.Server
	health   *health.Server
	callers  *callers                                      // nil before WhenGone
	check    func(method string, header metadata.MD) error // see Admit; may be nil
}

// NewServer listens and prepares a server; its health service answers NOT_SERVING until SetServing.
// Run, or Close if Run is never reached, gives the address back.
func NewServer(cfg ServerConfig) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := Guard(cfg.Listen, cfg.TLS, cfg.Insecure); err != nil {
		return nil, err
	}
	l, err := Listen(cfg.Listen)
	if err != nil {
		return nil, err
	}
	creds, secure := insecure.NewCredentials(), cfg.TLS != nil && !local(l)
	if secure {
		creds = credentials.NewTLS(cfg.TLS.Server())
	}
	s := &Server{cfg: cfg, listener: l, unix: l.Addr().Network() == "unix", health: health.NewServer()}
	if cfg.Internal && !s.unix && cfg.Secret == nil && !secure {
		_ = l.Close()
		return nil, tandem.Errorf("listen", tandem.Invalid,
			"%s: a server of internal services on TCP without TLS, and no secret: want one, or unix:///path", cfg.Listen)
	}
	s.grpc = grpc.NewServer(grpc.Creds(creds), grpc.InTapHandle(s.tap),
		grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(MaxMessage), grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(uint32(cfg.Streams)), grpc.ConnectionTimeout(cfg.Receive/3),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: cfg.Idle, Time: beat, Timeout: answer}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.ForceServerCodecV2(newCodec()), grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream), grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(4))
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	if local(l) && !cfg.Internal {
		reflection.Register(s.grpc)
	}
	s.SetServing(false)
	return s, nil
}

// Registrar returns the registrar of the server's services; register before Run.
func (s *Server) Registrar() grpc.ServiceRegistrar { return s.grpc }

// Addr returns the address in the form that Dial takes, with the port that the system chose.
func (s *Server) Addr() string { return address(s.listener) }

// WhenGone makes the server call gone with the number (see Caller) of each process that has called and then had no connection
// for 3 s: it has died, or will open a new connection for new work. Call WhenGone before Run.
func (s *Server) WhenGone(gone func(process uint64)) {
	s.callers = &callers{after: goneAfter, gone: gone, of: map[uint64]*caller{}}
}

// SetServing sets the answer of the health service.
func (s *Server) SetServing(up bool) {
	st := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if up {
		st = grpc_health_v1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", st)
	for name := range s.grpc.GetServiceInfo() { // orchestrators may ask for one service
		s.health.SetServingStatus(name, st)
	}
}

// Run serves until ctx ends, then stops taking calls, lets those in progress finish for the grace
// time, cancels the rest, waits for their handlers and removes the socket. It returns nil after an
// end of ctx.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan error, 1)
	l := &listener{Listener: s.listener, most: s.cfg.Connections, callers: s.callers, counters: s.cfg.Counters}
	defer s.callers.close()
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
	defer begin(ctx)()
	s.callers.seen(ctx)
	ctx, cancel := withDeadline(extract(ctx), s.cfg.Deadline)
	defer cancel()
	defer func() { err = s.outcome(ctx, info.FullMethod, recover(), err) }()
	_ = grpc.SetHeader(ctx, spoken)
	if err := s.speaks(ctx, info.FullMethod); err != nil {
		return nil, err
	}
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
	if err := s.speaks(ctx, info.FullMethod); err != nil {
		return err
	}
	in := &serverStream{ServerStream: ss, ctx: ctx}
	defer func() {
		if in.end != nil {
			in.end()
		}
	}()
	return handler(srv, in)
}

// outcome turns a handler's panic or error into the status to send.
func (s *Server) outcome(ctx context.Context, method string, panicked any, err error) error {
	if panicked != nil {
		s.cfg.Counters.Add("rpc.panics", 1)
		err = tandem.Panicked("rpc", panicked)
	}
	if stack := tandem.StackOf(err); stack != "" {
		s.cfg.Log.Error("panic in a request", "method", method, "error", err, "stack", stack)
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
	end func() // ends the call; nil before its first message has come
}

// SendHeader also tells this process's protocol. A refused stream has no header: a header means that the stream was accepted.
func (s *serverStream) SendHeader(md metadata.MD) error {
	return s.ServerStream.SendHeader(metadata.Join(md, spoken))
}

func (s *serverStream) Context() context.Context { return s.ctx }

func (s *serverStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if s.end == nil {
		s.end = begin(s.ctx)
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

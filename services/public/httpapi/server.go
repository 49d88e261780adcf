package httpapi

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/public/budget"
)

// Server is an HTTP server that listens already; Run it.
type Server struct {
	listener net.Listener
	handler  http.Handler
	grace    time.Duration
	common
}

// common is what the routes of a server have in common.
type common struct {
	bodies   *largeBodies
	answers  *budget.Budget // memory for answers that are sent as a whole
	log      *journal
	draining *atomic.Bool
}

// New listens and prepares a server. Run, or Close if Run is never reached, gives the address back. Errors: Invalid
// (an address that other machines can reach, without keys), Unavailable (in use).
func New(c Config) (*Server, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	if c.Keys == nil && !c.Insecure && !rpc.Loopback(c.Listen) {
		return nil, tandem.Errorf("listen", tandem.Invalid,
			"%s can be reached from other machines, and everybody is let in: choose 127.0.0.1, "+
				"give --api-key or --api-keys, or say --insecure-listen", c.Listen)
	}
	l, err := rpc.Listen(c.Listen)
	if err != nil {
		return nil, err
	}
	s := newServer(c, reachOf(l, c.Keys != nil))
	s.listener = newLimited(l, c.MaxConns, c.Counters, c.Log)
	return s, nil
}

// newServer returns a server that does not listen.
func newServer(c Config, hosts reach) *Server {
	s := &Server{grace: c.Grace, common: common{newBodies(), budget.New(allAnswers), &journal{Logger: c.Log, counters: c.Counters},
		new(atomic.Bool)}}
	t := &router{routes: map[string]route{}, door: door{hosts, c.Hosts, c.Origins, c.Keys}, log: s.log, stall: c.Stall}
	for _, r := range table(c, s.common) {
		t.routes[r.path] = r
	}
	if s.handler = t; c.Wrap != nil {
		s.handler = c.Wrap(t)
	}
	return s
}

// Addr returns the address that the server listens on, with the port that the system chose.
func (s *Server) Addr() string {
	if a := s.listener.Addr(); a.Network() == "unix" {
		return "unix://" + a.String()
	}
	return s.listener.Addr().String()
}

// URL returns the server's URL; "" for a socket.
func (s *Server) URL() string {
	if s.listener.Addr().Network() == "unix" {
		return ""
	}
	return "http://" + s.listener.Addr().String()
}

// Run serves until ctx ends, then takes no more calls, lets those in progress finish for the grace time, cancels the
// rest and waits for their handlers. It returns nil after an end of ctx.
func (s *Server) Run(ctx context.Context) error {
	life, kill := context.WithCancelCause(context.Background())
	defer kill(nil)
	server := &http.Server{Handler: s.handler, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return life }, ErrorLog: quiet(s.log.Logger),
		ConnState: state, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, guestKey{}, c)
		}}
	done := make(chan error, 1)
	go func() { done <- server.Serve(s.listener) }()
	select {
	case err := <-done:
		_ = server.Close()
		return tandem.Errorf("serve", tandem.Unavailable, "%s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	if !within(s.grace, server.Shutdown) {
		kill(tandem.Errorf(op, tandem.Unavailable, "the gateway is shutting down"))
		if !within(time.Second, server.Shutdown) {
			_ = server.Close()
		}
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return tandem.Errorf("serve", tandem.Unavailable, "%s: %w", s.Addr(), err)
	}
	return nil
}

// within gives shutdown that long, and reports whether it was enough.
func within(d time.Duration, shutdown func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return shutdown(ctx) == nil
}

// Close gives the address back of a server that was never run.
func (s *Server) Close() { _ = s.listener.Close() }

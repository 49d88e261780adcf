package rpc

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/tandem-llm/tandem"
)

// headerProof carries the proof that the caller has the secret, if the server wants one: see Credentials.
const headerProof = "tandem-proof"

// mostRefused is how many calls of one connection may be refused before it is closed: each costs the server a little
// memory for as long as the connection lasts.
const mostRefused = 64

// tap sees every call when its headers have come, before its message is read, so that a refused call costs no
// more than that. The ctx that it returns ends if the message does not come in time.
func (s *Server) tap(ctx context.Context, call *tap.Info) (context.Context, error) {
	at := linkOf(ctx)
	if err := s.admit(ctx, call.FullMethodName, call.Header); err != nil {
		s.cfg.Counters.Add("rpc.refused", 1)
		err = ToStatus(err)
		s.cfg.Counters.Add("rpc.errors."+kindOfCode(status.Code(err)).String(), 1)
		if at != nil && at.refused.Add(1) > mostRefused {
			_ = at.Conn.Close()
		}
		return ctx, err
	}
	if at != nil && call.FullMethodName != openToAll {
		at.admitted.Store(true)
	}
	return receive(ctx, s.cfg.Receive), nil
}

// admit returns nil if a call is allowed. Errors: Unauthenticated, and those of Admit's function.
func (s *Server) admit(ctx context.Context, method string, header metadata.MD) error {
	switch {
	case method == openToAll:
		return nil
	case s.check != nil:
		if err := s.check(method, header); err != nil {
			return err
		}
	}
	if !s.cfg.Internal || s.unix {
		return nil
	}
	p, _ := peer.FromContext(ctx)
	if p != nil {
		if secure, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(secure.State.PeerCertificates) > 0 {
			return admitRole(secure.State.PeerCertificates[0], method)
		}
	}
	given := header.Get(headerProof)
	if len(given) == 1 && s.cfg.Secret.acceptsProof(given[0], method) {
		return nil
	}
	what := "no secret"
	if len(given) > 0 {
		what = "another secret than this process"
	}
	return tandem.Errorf("access", tandem.Unauthenticated, "%s: the caller has %s: want the same --secret-file at both, "+
		"or both on one host and of one user", method, what)
}

// Admit makes check judge every call but Health.Check by its headers, before its message is read; an error refuses it. Call
// Admit before Run, at most once.
func (s *Server) Admit(check func(method string, header metadata.MD) error) { s.check = check }

// receiving is the ctx of a call whose message may not have come yet.
type receiving struct {
	context.Context
	timer *time.Timer
	late  atomic.Bool
}

type receivingKey struct{}

// receive returns a child of ctx that ends unless arrived is called on it within limit. The timer refers to the call, so it stops
// with it: else each call that a client resets would keep its memory for the whole limit.
func receive(ctx context.Context, limit time.Duration) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	r := &receiving{Context: ctx}
	r.timer = time.AfterFunc(limit, func() {
		r.late.Store(true)
		cancel()
	})
	context.AfterFunc(ctx, func() { r.timer.Stop() })
	return r
}

// arrived notes that the message of ctx's call has come.
func arrived(ctx context.Context) {
	if r, ok := ctx.Value(receivingKey{}).(*receiving); ok {
		r.timer.Stop()
	}
}

// Err implements context.Context.
func (r *receiving) Err() error {
	err := r.Context.Err()
	if err != nil && r.late.Load() {
		return context.DeadlineExceeded
	}
	return err
}

// Value implements context.Context.
func (r *receiving) Value(key any) any {
	if key == (receivingKey{}) {
		return r
	}
	return r.Context.Value(key)
}

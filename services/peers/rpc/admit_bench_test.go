package rpc

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

// BenchmarkChecks is what the checks and limits of a call cost, in both processes: with a secret, and without as on a unix socket.
func BenchmarkChecks(b *testing.B) {
	const method = peerv1.DrafterService_Propose_FullMethodName
	for name, unix := range map[string]bool{"unix": true, "secret": false} {
		b.Run(name, func(b *testing.B) {
			secret := new(Secret)
			secret.state.Store(&secrets{now: "a-secret-of-this-test"})
			secret.look.Store(time.Now().Add(time.Hour).UnixNano())
			s := &Server{unix: unix,
				cfg: ServerConfig{Internal: true, Secret: secret, Receive: time.Minute, Counters: new(tandem.Counters)}}
			md := metadata.MD{headerProcess: {number("x")}, headerProof: {proofOf("a-secret-of-this-test", method)}}
			call := &tap.Info{FullMethodName: method, Header: md}
			ctx, cancel := context.WithCancel(metadata.NewIncomingContext(context.Background(), md))
			defer cancel()
			var o Owners
			done, err := o.Open(1, Caller(ctx))
			if err != nil {
				b.Fatal(err)
			}
			done(true)
			for b.Loop() {
				in, end := context.WithCancel(ctx)
				got, err := s.tap(in, call)
				if err != nil {
					b.Fatal(err)
				}
				begin(got)()
				if err := o.Check(1, Caller(got)); err != nil {
					b.Fatal(err)
				}
				end()
			}
		})
	}
}

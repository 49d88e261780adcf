package rpc

import (
	"context"
	"crypto/tls"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
)

// callDeadline bounds a unary call whose caller set no deadline.
const callDeadline = 2 * time.Minute

// Dial returns a connection to "unix:///path" or "host:port". It does not wait for the peer: calls
// fail with Unavailable at once while it is down, and a peer that comes back is found within about
// 200 ms. Calls carry the trace of their context and this process' number, get a deadline if they have none, and return
// *tandem.Error. The caller closes the connection.
func Dial(addr string) (*grpc.ClientConn, error) { return dial(addr, nil) }

// dial is Dial, with TLS to TCP addresses if secure is not nil.
func dial(addr string, secure *tls.Config) (*grpc.ClientConn, error) {
	rest, isUnix, err := split(addr)
	if err != nil {
		return nil, err
	}
	// passthrough leaves names to the dialer: it resolves again at every attempt, and a restarted peer
	// may have another address.
	target, creds := "passthrough:///"+rest, insecure.NewCredentials()
	if isUnix {
		target = "unix://" + rest
	} else if secure != nil {
		creds = credentials.NewTLS(secure)
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(creds), grpc.WithNoProxy(), grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 15 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithUnaryInterceptor(callUnary), grpc.WithStreamInterceptor(callStream))
	if err != nil {
		return nil, tandem.Errorf("dial", tandem.Invalid, "%s: %w", addr, err)
	}
	return conn, nil
}

// outgoing returns ctx with what every call carries in its metadata.
func outgoing(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(inject(ctx), headerProcess, process)
}

func callUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := withDeadline(outgoing(ctx), callDeadline)
	defer cancel()
	return FromStatus(invoke(ctx, method, req, reply, cc, opts...))
}

func callStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(outgoing(ctx), desc, cc, method, opts...)
	if err != nil {
		return nil, FromStatus(err)
	}
	return &clientStream{s}, nil
}

// clientStream returns *tandem.Error from its methods.
type clientStream struct{ grpc.ClientStream }

func (s *clientStream) RecvMsg(m any) error { return FromStatus(s.ClientStream.RecvMsg(m)) }
func (s *clientStream) SendMsg(m any) error { return FromStatus(s.ClientStream.SendMsg(m)) }

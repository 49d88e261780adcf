package rpc

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// callDeadline bounds a unary call whose caller set no deadline.
const callDeadline = 2 * time.Minute

// After aliveAfter of silence a connection pings its peer, which then has aliveTime to answer. So a process may be stopped
// for 10 s at any time, by a signal or with its machine, without losing its connections.
const aliveAfter, aliveTime = 15 * time.Second, 15 * time.Second

// Dial returns a connection to "unix:///path" or "host:port". It does not wait for the peer: calls
// fail with Unavailable at once while it is down, and a peer that comes back is found within about
// 200 ms. Nothing is sent over a socket of another user. A process of another protocol is refused (CheckProtocol). Calls carry the
// trace of their context and this process's number, get a deadline if they have none, and return
// *tandem.Error. The caller closes the connection.
func Dial(addr string) (*grpc.ClientConn, error) { return dial(addr, nil, nil) }

// dial is Dial with TLS to TCP addresses if secure is not nil, configured anew for each connection; every call proves that this process has
// the secret, if any.
func dial(addr string, secure func() *tls.Config, proved *Secret) (*grpc.ClientConn, error) {
	rest, isUnix, err := split(addr)
	if err != nil {
		return nil, err
	}
	// passthrough leaves names to the dialer: it resolves again at every attempt, and a restarted peer
	// may have another address.
	target, creds, connect := "passthrough:///"+rest, insecure.NewCredentials(), grpc.DialOption(grpc.EmptyDialOption{})
	if isUnix {
		target = "unix://" + rest
		connect = grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return own(ctx, rest) })
	} else if secure != nil {
		creds = dialing(secure)
	}
	as := calls{process: number(addr), secret: proved}
	conn, err := grpc.NewClient(target, connect,
		grpc.WithTransportCredentials(creds), grpc.WithNoProxy(), grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: aliveAfter, Timeout: aliveTime}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithUnaryInterceptor(as.unary), grpc.WithStreamInterceptor(as.stream))
	if err != nil {
		return nil, tandem.Errorf("dial", tandem.Invalid, "%s: %w", addr, err)
	}
	return conn, nil
}

// own connects to the socket at path if a process of this user, or root, listens there. Nothing is sent to another: the mode of a socket
// says who may connect to it, not who made it, and whoever may write to its folder could have put it there.
func own(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if u, ok := c.(*net.UnixConn); !ok || !files.SameUser(u) {
		_ = c.Close()
		return nil, tandem.Errorf("dial", tandem.Unavailable, "unix://%s is served by another user: want a process of this user", path)
	}
	return c, nil
}

// calls makes the calls of a connection.
type calls struct {
	process string
	secret  *Secret
}

// outgoing returns ctx with the metadata that every call carries.
func (c calls) outgoing(ctx context.Context, method string) context.Context {
	ctx = inject(ctx)
	if proof := c.secret.proof(method); proof != "" {
		return metadata.AppendToOutgoingContext(ctx, headerProcess, c.process, headerProtocol, ours, headerProof, proof)
	}
	return metadata.AppendToOutgoingContext(ctx, headerProcess, c.process, headerProtocol, ours)
}

func (c calls) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	ctx, cancel := withDeadline(c.outgoing(ctx, method), callDeadline)
	defer cancel()
	service := serviceOf(method)
	if service == "" {
		return FromStatus(invoke(ctx, method, req, reply, cc, opts...))
	}
	var header metadata.MD
	err := invoke(ctx, method, req, reply, cc, append(opts[:len(opts):len(opts)], grpc.Header(&header))...)
	if other := answered(header, service, cc, err); other != nil {
		return other
	}
	return FromStatus(err)
}

func (c calls) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(c.outgoing(ctx, method), desc, cc, method, opts...)
	if err != nil {
		return nil, FromStatus(err)
	}
	return &clientStream{s, cc, serviceOf(method)}, nil
}

// clientStream returns *tandem.Error from its methods.
type clientStream struct {
	grpc.ClientStream
	cc      *grpc.ClientConn
	service string // as serviceOf returns it
}

// Header also refuses a process that speaks another protocol.
func (s *clientStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	if s.service == "" || err != nil || md == nil { // without a header the stream has failed: RecvMsg says why
		return md, FromStatus(err)
	}
	return md, answered(md, s.service, s.cc, nil)
}

func (s *clientStream) RecvMsg(m any) error { return FromStatus(s.ClientStream.RecvMsg(m)) }
func (s *clientStream) SendMsg(m any) error { return FromStatus(s.ClientStream.SendMsg(m)) }

// Package client is the Go client of a tandem gateway. It needs neither cgo nor any other part of
// tandem.
package client

import (
	"context"
	"iter"
	"net"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// Client is a connection to one gateway. Safe for concurrent use.
type Client struct {
	addr string
	conn *grpc.ClientConn
	rpc  tandemv1.GenerationServiceClient
	chat tandemv1.ChatServiceClient

	resume time.Duration
}

// Dial returns a client of the gateway at "host:port" or "unix:///absolute/path". It does not wait
// for the gateway: calls answer Unavailable while it is away. The caller must Close it.
func Dial(addr string, opts ...Option) (*Client, error) {
	o := options{resume: resumeFor}
	for _, opt := range opts {
		opt(&o)
	}
	target, creds, local := "passthrough:///"+addr, insecure.NewCredentials(), false
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		if target, local = addr, true; !filepath.IsAbs(path) {
			return nil, &Error{Kind: Invalid, Message: "address " + addr + ": want unix:///absolute/path or host:port"}
		}
	} else {
		host, port, err := net.SplitHostPort(addr)
		if err != nil || port == "" || strings.Contains(addr, "/") {
			return nil, &Error{Kind: Invalid, Message: "address " + addr + ": want host:port or unix:///absolute/path"}
		}
		ip := net.ParseIP(host)
		local = host == "" || host == "localhost" || ip != nil && ip.IsLoopback()
		if o.tls != nil {
			creds = credentials.NewTLS(o.tls)
		}
	}
	const limit = 4 << 20 // the gateway's own, bytes
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second,
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 15 * time.Second, Timeout: 15 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(limit), grpc.MaxCallSendMsgSize(limit)),
	}
	if o.token != nil {
		if err := o.checkToken(addr, local); err != nil {
			return nil, err
		}
		dial = append(dial, grpc.WithPerRPCCredentials(bearer(*o.token)))
	}
	conn, err := grpc.NewClient(target, append(dial, o.dial...)...)
	if err != nil {
		return nil, &Error{Kind: Invalid, Message: "address " + addr + ": " + err.Error()}
	}
	return &Client{addr: addr, conn: conn, rpc: tandemv1.NewGenerationServiceClient(conn), chat: tandemv1.NewChatServiceClient(conn),
		resume: o.resume}, nil
}

// Close ends the connection and the calls on it.
func (c *Client) Close() error { return c.conn.Close() }

// Generate runs one request. The sequence ends after Finished or with an error; events before an error are
// valid. Leaving the loop, or the end of ctx, cancels the request. A stream that breaks off once it has begun is taken up again where it
// was (WithResume): the loop sees no more of that than a pause.
func (c *Client) Generate(ctx context.Context, r Request) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := r.check(); err != nil {
			yield(Event{}, err)
			return
		}
		g := &generation{c: c, request: r.encode()}
		if err := g.run(ctx, c, func(ctx context.Context) error { return g.stream(ctx, yield) }); err != nil {
			yield(Event{}, err)
		}
	}
}

// Chat answers one conversation. The sequence ends after the event Finished or with an error; events before an error are valid. Leaving the
// loop, or the end of ctx, cancels the request. The messages are those of proto/tandem/v1/chat.proto. A stream that breaks off once it has
// begun is taken up again, as in Generate.
func (c *Client) Chat(ctx context.Context, r *tandemv1.ChatRequest) iter.Seq2[*tandemv1.ChatResponse, error] {
	return func(yield func(*tandemv1.ChatResponse, error) bool) {
		a := &answer{c: c, request: own(r)}
		if err := a.run(ctx, c, func(ctx context.Context) error { return a.stream(ctx, yield) }); err != nil {
			yield(nil, err)
		}
	}
}

// cut is the error of a stream that ends without its last event.
var cut = &Error{Kind: Unavailable, Message: "the gateway ended the stream before the generation"}

// Describe returns the gateway's description. The caller owns the message.
func (c *Client) Describe(ctx context.Context) (*tandemv1.DescribeResponse, error) {
	d, err := c.rpc.Describe(ctx, &tandemv1.DescribeRequest{})
	return d, c.told(err)
}

// Tokenize returns the tokens that a prompt becomes, special tokens included, and the bytes that each stands for.
func (c *Client) Tokenize(ctx context.Context, text string) (tokens []uint32, pieces [][]byte, err error) {
	if !utf8.ValidString(text) {
		return nil, nil, &Error{Kind: Invalid, Field: "text", Message: "request: text is not valid UTF-8"}
	}
	r, err := c.rpc.Tokenize(ctx, &tandemv1.TokenizeRequest{Text: text})
	return r.GetTokens().GetIds(), r.GetPieces(), c.told(err)
}

// Detokenize returns the text that tokens stand for, with U+FFFD in place of invalid UTF-8.
func (c *Client) Detokenize(ctx context.Context, tokens []uint32) (string, error) {
	r, err := c.rpc.Detokenize(ctx, &tandemv1.DetokenizeRequest{Tokens: &tandemv1.TokenList{Ids: tokens}})
	return r.GetText(), c.told(err)
}

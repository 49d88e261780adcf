package verifying

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/wire"
)

const (
	renewAfter = time.Hour             // every call has a deadline: the standing stream is renewed at this one
	retryPause = 20 * time.Millisecond // between attempts to subscribe
)

// Client implements tandem.Verifier over a connection from rpc.Dial, which stays the caller's.
type Client struct{ rpc peerv1.VerifierServiceClient }

// NewClient returns the verifier at the other end of conn.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{peerv1.NewVerifierServiceClient(conn)}
}

// Open implements tandem.Verifier.Open.
func (c *Client) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	r, err := c.rpc.Open(ctx, &peerv1.VerifierServiceOpenRequest{Opening: wire.FromOpening(o)})
	return tandem.Opened{Reused: int(r.GetReused())}, err
}

// Close implements tandem.Verifier.Close.
func (c *Client) Close(ctx context.Context, id tandem.SessionID) error {
	_, err := c.rpc.Close(ctx, &peerv1.VerifierServiceCloseRequest{Session: uint64(id)})
	return err
}

// Put implements tandem.Pool.Put without a pool: it hands t straight to the verifier.
func (c *Client) Put(ctx context.Context, t tandem.Ticket) error {
	_, err := c.rpc.Submit(ctx, &peerv1.SubmitRequest{Ticket: wire.FromEnvelope(wire.Envelope{Ticket: t})})
	return err
}

// Describe tells what the verifier is.
func (c *Client) Describe(ctx context.Context) (wire.Description, error) {
	r, err := c.rpc.Describe(ctx, &peerv1.VerifierServiceDescribeRequest{})
	if err != nil {
		return wire.Description{}, err
	}
	return wire.ToDescription(r.GetDescription()), nil
}

// Run subscribes to the verdicts and calls deliver with each, in order, until ctx ends; it subscribes
// again whenever the stream breaks. It calls state(true) when a subscription holds, before the first of
// its verdicts, and state(false) when it breaks and at the end. Both are called by Run's goroutine,
// and a deliver that takes long delays everyone's verdicts.
func (c *Client) Run(ctx context.Context, deliver func(tandem.Verdict), state func(up bool)) {
	up := false
	set := func(now bool) {
		if now != up {
			up = now
			state(now)
		}
	}
	defer set(false)
	for ctx.Err() == nil {
		if c.follow(ctx, deliver, func() { set(true) }) {
			continue
		}
		set(false)
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
		}
	}
}

// follow reads one stream to its end. It reports whether that was merely the stream's deadline.
func (c *Client) follow(ctx context.Context, deliver func(tandem.Verdict), holds func()) (renew bool) {
	ctx, cancel := context.WithTimeout(ctx, renewAfter)
	defer cancel()
	// Waiting for the connection finds a restarted verifier at the first moment it answers.
	stream, err := c.rpc.Verdicts(ctx, &peerv1.VerdictsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return false
	}
	// A stream that failed without a header has nil metadata and tells its error to Recv.
	if md, err := stream.Header(); err != nil || md == nil {
		return false
	}
	holds()
	for {
		r, err := stream.Recv()
		if err != nil {
			return tandem.KindOf(err) == tandem.Deadline && ctx.Err() == context.DeadlineExceeded
		}
		for _, v := range r.GetVerdicts() {
			deliver(wire.ToVerdict(v))
		}
	}
}

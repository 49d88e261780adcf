package verifying

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/holding"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// renewAfter is the deadline of a stream of verdicts, for every call has one; then it is renewed.
const renewAfter = time.Hour

// Client implements tandem.Verifier over a connection from rpc.Dial, which stays the caller's.
type Client struct {
	rpc      peerv1.VerifierServiceClient
	segment  string    // see Passing
	features *shm.Link // see Mapping; nil: features come inside answers
	drafter  string    // likewise
}

// NewClient returns a client of the verifier at the other end of conn, which stays the caller's.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{rpc: peerv1.NewVerifierServiceClient(conn)}
}

// Passing returns a copy of c for a process that hands out shared memory with the trees of its tickets at a socket; "": it hands out none.
// A verifier on the same host maps that memory for as long as the process subscribes to verdicts.
func (c *Client) Passing(socket string) *Client { return &Client{rpc: c.rpc, segment: socket} }

// Open implements tandem.Verifier.Open.
func (c *Client) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	ctx, cancel := context.WithTimeout(ctx, holding.Deadline)
	defer cancel()
	stream, err := c.rpc.Hold(ctx, &peerv1.VerifierServiceHoldRequest{Opening: wire.FromOpening(o)})
	if err != nil {
		return tandem.Opened{}, err
	}
	last, err := holding.Await(stream, func(m *peerv1.VerifierServiceHoldResponse) bool {
		if p := m.GetProgress(); p != nil && o.Progress != nil {
			o.Progress(wire.ToProgress(p))
		}
		return m.GetOpened() != nil
	})
	if err != nil {
		return tandem.Opened{}, err
	}
	r := last.GetOpened()
	identity, err := wire.ToIdentity(r.GetIdentity())
	return tandem.Opened{Identity: identity, Reused: int(r.GetReused()), Cached: int(r.GetCached()),
		Guesses: wire.ToGuesses(r.GetGuesses())}, err
}

// Close implements tandem.Verifier.Close.
func (c *Client) Close(ctx context.Context, id tandem.SessionID) error {
	_, err := c.rpc.Close(ctx, &peerv1.VerifierServiceCloseRequest{Session: uint64(id)})
	return err
}

// Submit implements tandem.Verifier.Submit.
func (c *Client) Submit(ctx context.Context, t tandem.Ticket) error {
	_, err := c.rpc.Submit(ctx, &peerv1.SubmitRequest{Ticket: wire.FromEnvelope(wire.Envelope{Ticket: t})})
	return err
}

// Verdicts implements tandem.Verifier.Verdicts. It waits for a verifier that cannot be reached; transport errors do not say
// whether the verifier has ended.
func (c *Client) Verdicts(ctx context.Context, s tandem.Subscription) error {
	for {
		if renew, err := c.follow(ctx, s); !renew {
			return err
		}
	}
}

// follow reads one stream to its end. renew reports that only the stream's deadline ended it; otherwise err says why.
func (c *Client) follow(ctx context.Context, s tandem.Subscription) (renew bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, renewAfter)
	defer cancel()
	request := &peerv1.VerdictsRequest{SegmentSocket: c.segment}
	if s.Sessions != nil {
		request.Sessions = wire.FromSessions(s.Sessions())
	}
	// Waiting for the connection finds a restarted verifier at the first moment it answers.
	stream, err := c.rpc.Verdicts(ctx, request, grpc.WaitForReady(true))
	if err != nil {
		return false, err
	}
	md, err := stream.Header()
	if err != nil {
		return false, err
	}
	if md != nil && s.Began != nil { // a stream that failed without a header tells its error to Recv
		s.Began()
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return tandem.KindOf(err) == tandem.Deadline && ctx.Err() == context.DeadlineExceeded, err
		}
		verdicts := make([]tandem.Verdict, len(r.GetVerdicts()))
		for i, v := range r.GetVerdicts() {
			verdicts[i] = wire.ToVerdict(v)
		}
		s.Deliver(verdicts)
	}
}

// Describe implements tandem.Verifier.Describe.
func (c *Client) Describe(ctx context.Context) (tandem.Description, error) {
	r, err := c.rpc.Describe(ctx, &peerv1.VerifierServiceDescribeRequest{})
	if err != nil {
		return tandem.Description{}, err
	}
	return wire.ToDescription(r.GetDescription()), nil
}

var _ tandem.Verifier = (*Client)(nil)

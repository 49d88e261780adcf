package drafting

import (
	"context"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/wire"
)

// maxVocabulary bounds what Client.Vocabulary collects from a peer.
const maxVocabulary = 4 << 20

// Client implements tandem.Drafter over a connection from rpc.Dial, which stays the caller's.
type Client struct {
	rpc  peerv1.DrafterServiceClient
	name string
}

// NewClient returns the named drafter of the process at the other end of conn, "" for its first.
func NewClient(conn grpc.ClientConnInterface, name string) *Client {
	return &Client{peerv1.NewDrafterServiceClient(conn), name}
}

// Open implements tandem.Drafter.Open.
func (c *Client) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	r, err := c.rpc.Open(ctx, &peerv1.DrafterServiceOpenRequest{Opening: wire.FromOpening(o), Drafter: c.name})
	return tandem.Opened{Reused: int(r.GetReused()), Hindsight: wire.ToHindsight(r.GetHindsight())}, err
}

// Propose implements tandem.Drafter.Propose. Besides: Corrupt for an answer whose tree is none.
func (c *Client) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	r, err := c.rpc.Propose(ctx, wire.FromProposal(p, c.name))
	if err != nil {
		return tandem.Proposed{}, err
	}
	return wire.ToProposed(r)
}

// Close implements tandem.Drafter.Close.
func (c *Client) Close(ctx context.Context, id tandem.SessionID) error {
	_, err := c.rpc.Close(ctx, &peerv1.DrafterServiceCloseRequest{Session: uint64(id), Drafter: c.name})
	return err
}

// Describe tells what the drafter is.
func (c *Client) Describe(ctx context.Context) (wire.Description, error) {
	r, err := c.rpc.Describe(ctx, &peerv1.DrafterServiceDescribeRequest{Drafter: c.name})
	if err != nil {
		return wire.Description{}, err
	}
	return wire.ToDescription(r.GetDescription()), nil
}

// Vocabulary returns all pieces of the drafter's vocabulary by token id, as raw bytes.
func (c *Client) Vocabulary(ctx context.Context) ([][]byte, error) {
	var pieces [][]byte
	for {
		r, err := c.rpc.Vocabulary(ctx, &peerv1.VocabularyRequest{Offset: int32(len(pieces)), Limit: maxPieces, Drafter: c.name})
		if err != nil {
			return nil, err
		}
		if len(r.GetPieces()) == 0 {
			return pieces, nil
		}
		if pieces = append(pieces, r.GetPieces()...); len(pieces) > maxVocabulary {
			return nil, tandem.Errorf(op, tandem.Corrupt, "drafter's vocabulary does not end after %d pieces", maxVocabulary)
		}
	}
}

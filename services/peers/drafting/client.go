package drafting

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/holding"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/trees"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// maxVocabularyBytes bounds what Client.Vocabulary collects from a peer.
const maxVocabularyBytes = 64 << 20

// Client implements tandem.Drafter over a connection from rpc.Dial, which the caller owns.
type Client struct {
	rpc     peerv1.DrafterServiceClient
	name    string
	segment *shm.Link // nil: trees come inside answers
}

// NewClient returns a client of the drafter called name in the process at the other end of conn; "" is its first. conn stays the caller's.
func NewClient(conn grpc.ClientConnInterface, name string) *Client {
	return &Client{rpc: peerv1.NewDrafterServiceClient(conn), name: name}
}

// Mapping returns a copy of c that reads trees in the process's shared memory while segment has it mapped. The caller owns segment, which
// may be nil.
func (c *Client) Mapping(segment *shm.Link) *Client {
	return &Client{rpc: c.rpc, name: c.name, segment: segment}
}

// Open implements tandem.Drafter.Open.
func (c *Client) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	ctx, cancel := context.WithTimeout(ctx, holding.Deadline)
	defer cancel()
	stream, err := c.rpc.Hold(ctx, &peerv1.DrafterServiceHoldRequest{Opening: wire.FromOpening(o), Drafter: c.name})
	if err != nil {
		return tandem.Opened{}, err
	}
	last, err := holding.Await(stream, func(m *peerv1.DrafterServiceHoldResponse) bool {
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
	return tandem.Opened{Identity: identity, Reused: int(r.GetReused()), Hindsight: wire.ToHindsight(r.GetHindsight())}, err
}

// Propose implements tandem.Drafter.Propose. Further errors: Corrupt if the answer's tree is invalid, and Stale if the tree's lease
// ended before it was read.
func (c *Client) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	m := wire.FromProposal(p, c.name)
	if c.segment != nil {
		m.Mapped = c.segment.Segment()
	}
	r, err := c.rpc.Propose(ctx, m)
	if err != nil {
		return tandem.Proposed{}, err
	}
	out, h, err := wire.ToProposed(r)
	switch {
	case err != nil || h == (shm.Handle{}):
		return out, err
	case h.Segment != m.Mapped || c.segment == nil:
		return out, tandem.Errorf(op, tandem.Corrupt, "drafter told a tree in segment %016x: want it in %016x, or in the answer",
			h.Segment, m.Mapped)
	}
	out.Tree, err = trees.Read(c.segment, h)
	return out, err
}

// Fetch returns a copy of the payload of h from the drafter process, by gRPC. Errors: those of pool.Fetcher.
func (c *Client) Fetch(ctx context.Context, h shm.Handle) ([]byte, error) {
	r, err := c.rpc.Claim(ctx, &peerv1.ClaimRequest{Handle: wire.FromHandle(h), Inline: true})
	return r.GetPayload(), err
}

// Close implements tandem.Drafter.Close.
func (c *Client) Close(ctx context.Context, id tandem.SessionID) error {
	_, err := c.rpc.Close(ctx, &peerv1.DrafterServiceCloseRequest{Session: uint64(id), Drafter: c.name})
	return err
}

// Describe returns the drafter's description. Errors: Unsupported if the process has no drafter of that name.
func (c *Client) Describe(ctx context.Context) (tandem.Description, error) {
	r, err := c.rpc.Describe(ctx, &peerv1.DrafterServiceDescribeRequest{Drafter: c.name})
	if err != nil {
		return tandem.Description{}, err
	}
	return wire.ToDescription(r.GetDescription()), nil
}

// Vocabulary returns the drafter's vocabulary, but no more than its first most tokens. It is the caller's. Errors: Unsupported if the
// drafter does not tell it; Corrupt if it is inconsistent or has more than maxVocabularyBytes.
func (c *Client) Vocabulary(ctx context.Context, most int) (all wire.Vocabulary, err error) {
	for size := 0; len(all.Pieces) < most; {
		limit := min(maxPieces, most-len(all.Pieces))
		r, err := c.rpc.Vocabulary(ctx, &peerv1.VocabularyRequest{Offset: int32(len(all.Pieces)), Limit: int32(limit), Drafter: c.name})
		if err != nil {
			return all, err
		}
		part, err := wire.ToVocabulary(r)
		if err != nil {
			return all, err
		}
		n := min(len(part.Pieces), limit)
		if n == 0 {
			break
		}
		for _, p := range part.Pieces[:n] {
			size += len(p)
		}
		if size > maxVocabularyBytes {
			return all, tandem.Errorf(op, tandem.Corrupt, "drafter's vocabulary has more than %d bytes in its first %d tokens",
				maxVocabularyBytes, len(all.Pieces)+n)
		}
		all.Tokenizer, all.EOS = part.Tokenizer, part.EOS
		all.Pieces, all.Kinds = append(all.Pieces, part.Pieces[:n]...), append(all.Kinds, part.Kinds[:min(n, len(part.Kinds))]...)
	}
	return all, nil
}

// Target gives the drafter the tokenizer of a target, as the bytes of a GGUF file; fingerprint is that of its vocabulary. Errors:
// Unsupported if the drafter cannot translate.
func (c *Client) Target(ctx context.Context, fingerprint string, file []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Target(ctx)
	if err != nil {
		return err
	}
	for first := true; first || len(file) > 0; first = false {
		n := min(len(file), maxPieceBytes)
		m := &peerv1.TargetRequest{Vocabulary: file[:n]}
		if first {
			m.Drafter, m.Fingerprint = c.name, fingerprint
		}
		if err := stream.Send(m); errors.Is(err, io.EOF) {
			break // the answer says why
		} else if err != nil {
			return err
		}
		file = file[n:]
	}
	_, err = stream.CloseAndRecv()
	return err
}

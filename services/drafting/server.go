// Package drafting puts a tandem.Drafter on the wire: Register serves one, Client is one whose drafting
// happens in another process, and Claimer fetches for the verifier the trees that were too large for a
// ticket.
package drafting

import (
	"context"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/wire"
)

const (
	op = "drafting"

	maxPieces     = 16 << 10 // in one Vocabulary answer
	maxPieceBytes = 1 << 20
)

// Config is what a drafter process serves.
type Config struct {
	Drafter    tandem.Drafter
	Segment    *shm.Owner                       // holds the larger trees; nil: none
	Describe   func() wire.Description          // called for every Describe
	Vocabulary func(offset, limit int) [][]byte // pieces from offset on, at most limit; empty at the end
}

// Register serves cfg on r.
func Register(r grpc.ServiceRegistrar, cfg Config) {
	peerv1.RegisterDrafterServiceServer(r, &server{cfg: cfg})
}

type server struct {
	peerv1.UnimplementedDrafterServiceServer
	cfg Config
}

func (s *server) Open(ctx context.Context, r *peerv1.DrafterServiceOpenRequest) (*peerv1.DrafterServiceOpenResponse, error) {
	o, err := wire.ToOpening(r.GetOpening())
	if err != nil {
		return nil, err
	}
	return &peerv1.DrafterServiceOpenResponse{}, s.cfg.Drafter.Open(ctx, o)
}

func (s *server) Propose(ctx context.Context, r *peerv1.ProposeRequest) (*peerv1.ProposeResponse, error) {
	p, err := s.cfg.Drafter.Propose(ctx, wire.ToProposal(r))
	if err != nil {
		return nil, err
	}
	return &peerv1.ProposeResponse{Nodes: int32(p.Nodes), Depth: int32(p.Depth), BusyNs: int64(p.Busy)}, nil
}

func (s *server) Close(ctx context.Context, r *peerv1.DrafterServiceCloseRequest) (*peerv1.DrafterServiceCloseResponse, error) {
	return &peerv1.DrafterServiceCloseResponse{}, s.cfg.Drafter.Close(ctx, tandem.SessionID(r.GetSession()))
}

func (s *server) Claim(_ context.Context, r *peerv1.ClaimRequest) (*peerv1.ClaimResponse, error) {
	if s.cfg.Segment == nil {
		return nil, tandem.Errorf(op, tandem.Stale, "this drafter has no shared memory")
	}
	h := wire.ToHandle(r.GetHandle())
	if !r.GetInline() {
		return &peerv1.ClaimResponse{}, s.cfg.Segment.Claim(h, r.GetPeer())
	}
	payload, err := s.cfg.Segment.Take(h)
	return &peerv1.ClaimResponse{Payload: payload}, err
}

func (s *server) Release(_ context.Context, r *peerv1.ReleaseRequest) (*peerv1.ReleaseResponse, error) {
	if s.cfg.Segment != nil {
		for _, h := range r.GetHandles() {
			s.cfg.Segment.Release(wire.ToHandle(h))
		}
	}
	return &peerv1.ReleaseResponse{}, nil
}

func (s *server) Describe(context.Context, *peerv1.DrafterServiceDescribeRequest) (*peerv1.DrafterServiceDescribeResponse, error) {
	return &peerv1.DrafterServiceDescribeResponse{Description: wire.FromDescription(s.cfg.Describe())}, nil
}

func (s *server) Vocabulary(_ context.Context, r *peerv1.VocabularyRequest) (*peerv1.VocabularyResponse, error) {
	if r.GetOffset() < 0 || r.GetLimit() < 1 {
		return nil, tandem.Errorf(op, tandem.Invalid, "vocabulary from %d, %d pieces: want 0 or more, 1 or more", r.GetOffset(), r.GetLimit())
	}
	if s.cfg.Vocabulary == nil {
		return nil, tandem.Errorf(op, tandem.Unsupported, "this drafter does not tell its vocabulary")
	}
	out := &peerv1.VocabularyResponse{}
	size := 0
	for _, p := range s.cfg.Vocabulary(int(r.GetOffset()), min(int(r.GetLimit()), maxPieces)) {
		if size += len(p); size > maxPieceBytes && len(out.Pieces) > 0 {
			break
		}
		out.Pieces = append(out.Pieces, p)
	}
	return out, nil
}

// Package drafting puts tandem.Drafters on the wire: Register serves those of a process, Client is one
// whose drafting happens in another process, and Claimer fetches for the verifier the trees that were too large for a
// ticket.
package drafting

import (
	"context"
	"strings"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/wire"
)

const (
	op = "drafting"

	maxPieces     = 16 << 10 // in one Vocabulary answer
	maxPieceBytes = 1 << 20
)

// Named is one drafter of a process.
type Named struct {
	Name       string
	Drafter    tandem.Drafter
	Describe   func() wire.Description          // called for every Describe; nil: the name alone is told
	Vocabulary func(offset, limit int) [][]byte // pieces from offset on, at most limit; empty at the end; nil: none is told
}

// Config is what a drafter process serves.
type Config struct {
	Drafters []Named    // at least one, each name once; calls that name none are for the first
	Segment  *shm.Owner // holds the larger trees of all; nil: none
}

// Register serves cfg on r.
func Register(r grpc.ServiceRegistrar, cfg Config) {
	peerv1.RegisterDrafterServiceServer(r, &server{cfg: cfg})
}

type server struct {
	peerv1.UnimplementedDrafterServiceServer
	cfg Config
}

// names returns the names of the drafters in order.
func (s *server) names() (names []string) {
	for _, d := range s.cfg.Drafters {
		names = append(names, d.Name)
	}
	return names
}

// of returns the named drafter. Errors: Unsupported.
func (s *server) of(name string) (*Named, error) {
	for i := range s.cfg.Drafters {
		if d := &s.cfg.Drafters[i]; name == "" || d.Name == name {
			return d, nil
		}
	}
	return nil, tandem.Errorf(op, tandem.Unsupported, "drafter %.210q is not here: want one of %s", name, strings.Join(s.names(), ", "))
}

func (s *server) Open(ctx context.Context, r *peerv1.DrafterServiceOpenRequest) (*peerv1.DrafterServiceOpenResponse, error) {
	d, err := s.of(r.GetDrafter())
	if err != nil {
		return nil, err
	}
	o, err := wire.ToOpening(r.GetOpening())
	if err != nil {
		return nil, err
	}
	o.Owner = rpc.Caller(ctx)
	opened, err := d.Drafter.Open(ctx, o)
	return &peerv1.DrafterServiceOpenResponse{Reused: int32(opened.Reused), Hindsight: wire.FromHindsight(opened.Hindsight)}, err
}

func (s *server) Propose(ctx context.Context, r *peerv1.ProposeRequest) (*peerv1.ProposeResponse, error) {
	d, err := s.of(r.GetDrafter())
	if err != nil {
		return nil, err
	}
	p, err := wire.ToProposal(r)
	if err != nil {
		return nil, err
	}
	done, err := d.Drafter.Propose(ctx, p)
	if err != nil {
		return nil, err
	}
	return wire.FromProposed(done), nil
}

func (s *server) Close(ctx context.Context, r *peerv1.DrafterServiceCloseRequest) (*peerv1.DrafterServiceCloseResponse, error) {
	d, err := s.of(r.GetDrafter())
	if err != nil {
		return nil, err
	}
	return &peerv1.DrafterServiceCloseResponse{}, d.Drafter.Close(ctx, tandem.SessionID(r.GetSession()))
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

func (s *server) Describe(_ context.Context, r *peerv1.DrafterServiceDescribeRequest) (*peerv1.DrafterServiceDescribeResponse, error) {
	named, err := s.of(r.GetDrafter())
	if err != nil {
		return nil, err
	}
	var d wire.Description
	if named.Describe != nil {
		d = named.Describe()
	}
	d.Name, d.Drafters = named.Name, s.names()
	return &peerv1.DrafterServiceDescribeResponse{Description: wire.FromDescription(d)}, nil
}

func (s *server) Vocabulary(_ context.Context, r *peerv1.VocabularyRequest) (*peerv1.VocabularyResponse, error) {
	d, err := s.of(r.GetDrafter())
	switch {
	case err != nil:
		return nil, err
	case r.GetOffset() < 0 || r.GetLimit() < 1:
		return nil, tandem.Errorf(op, tandem.Invalid, "vocabulary from %d, %d pieces: want 0 or more, 1 or more", r.GetOffset(), r.GetLimit())
	case d.Vocabulary == nil:
		return nil, tandem.Errorf(op, tandem.Unsupported, "drafter %s does not tell its vocabulary", d.Name)
	}
	out := &peerv1.VocabularyResponse{}
	size := 0
	for _, p := range d.Vocabulary(int(r.GetOffset()), min(int(r.GetLimit()), maxPieces)) {
		if size += len(p); size > maxPieceBytes && len(out.Pieces) > 0 {
			break
		}
		out.Pieces = append(out.Pieces, p)
	}
	return out, nil
}

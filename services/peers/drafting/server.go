// Package drafting puts tandem.Drafters on the wire: Register serves those of a process, Client is one
// whose drafting happens in another process.
package drafting

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/draining"
	"github.com/tandem-llm/tandem/services/peers/holding"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/trees"
	"github.com/tandem-llm/tandem/services/peers/wire"
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
	Describe   func() tandem.Description               // called for every Describe; nil: the name alone is told
	Vocabulary func(offset, limit int) wire.Vocabulary // returns at most limit tokens from offset on, none at the end; nil: not told
	// Target gets the tokenizer of a target, as the bytes of a GGUF file, and the fingerprint of its vocabulary; nil: no translation.
	Target func(fingerprint string, file []byte) error
}

// ServerConfig is what a drafter process serves.
type ServerConfig struct {
	Drafters []Named       // at least one, each name once; calls without a name are for the first
	Trees    *trees.Writer // writes the trees of all into shared memory; nil: none
	// Announced returns what the process announces now, for Describe; nil: it does not announce itself.
	Announced func() wire.Announcement
	Draining  func() bool // whether it takes no new sessions; nil: it takes them
}

// Register serves cfg on r, each session to the process that opened it alone. Call forget with the number of each process that is gone
// (rpc.Server.WhenGone).
func Register(r grpc.ServiceRegistrar, cfg ServerConfig) (forget func(process uint64)) {
	s := &server{cfg: cfg, drafters: make([]drafter, len(cfg.Drafters))}
	for i, d := range cfg.Drafters {
		s.drafters[i].Named = d
	}
	peerv1.RegisterDrafterServiceServer(r, s)
	return func(process uint64) {
		for i := range s.drafters {
			s.drafters[i].owners.Forget(process)
		}
	}
}

type server struct {
	peerv1.UnimplementedDrafterServiceServer
	cfg      ServerConfig
	drafters []drafter
}

// drafter is a drafter with the owners of its sessions.
type drafter struct {
	Named
	owners rpc.Owners
}

// names returns the names of the drafters in order.
func (s *server) names() (names []string) {
	for _, d := range s.cfg.Drafters {
		names = append(names, d.Name)
	}
	return names
}

// of returns the named drafter. Errors: Unsupported.
func (s *server) of(name string) (*drafter, error) {
	for i := range s.drafters {
		if d := &s.drafters[i]; name == "" || d.Name == name {
			return d, nil
		}
	}
	return nil, tandem.Errorf(op, tandem.Unsupported, "drafter %.210q is not here: want one of %s", name, strings.Join(s.names(), ", "))
}

func (s *server) Open(ctx context.Context, r *peerv1.DrafterServiceOpenRequest) (*peerv1.DrafterServiceOpenResponse, error) {
	return s.open(ctx, r.GetDrafter(), r.GetOpening(), nil)
}

func (s *server) Hold(r *peerv1.DrafterServiceHoldRequest, stream grpc.ServerStreamingServer[peerv1.DrafterServiceHoldResponse]) error {
	return holding.Serve(stream, func(p tandem.Progress) *peerv1.DrafterServiceHoldResponse {
		return &peerv1.DrafterServiceHoldResponse{State: &peerv1.DrafterServiceHoldResponse_Progress{Progress: wire.FromProgress(p)}}
	}, func(ctx context.Context, told func(tandem.Progress)) (*peerv1.DrafterServiceHoldResponse, error) {
		opened, err := s.open(ctx, r.GetDrafter(), r.GetOpening(), told)
		return &peerv1.DrafterServiceHoldResponse{State: &peerv1.DrafterServiceHoldResponse_Opened{Opened: opened}}, err
	})
}

// open has the named drafter hold a session of the caller's; told is told the progress, if it is not nil.
func (s *server) open(ctx context.Context, name string, m *peerv1.Opening, told func(tandem.Progress)) (
	*peerv1.DrafterServiceOpenResponse, error) {
	d, err := s.of(name)
	if err != nil {
		return nil, err
	}
	o, err := wire.ToOpening(m)
	if err != nil {
		return nil, err
	}
	o.Progress = told
	if o.Owner, err = d.owners.Caller(ctx); err != nil {
		return nil, err
	}
	if s.cfg.Draining != nil && s.cfg.Draining() && d.owners.Check(o.Session, o.Owner) != nil {
		return nil, draining.Refuse("drafter")
	}
	done, err := d.owners.Open(o.Session, o.Owner)
	if err != nil {
		return nil, err
	}
	opened, err := d.Drafter.Open(ctx, o)
	done(err == nil)
	return &peerv1.DrafterServiceOpenResponse{Reused: int32(opened.Reused), Hindsight: wire.FromHindsight(opened.Hindsight),
		Identity: string(opened.Identity)}, err
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
	if err := d.owners.Check(p.Session, rpc.Caller(ctx)); err != nil {
		return nil, err
	}
	done, err := d.Drafter.Propose(ctx, p)
	if err != nil {
		return nil, err
	}
	return wire.FromProposed(done, s.cfg.Trees.Answer(d.Name, p, done.Tree, r.GetMapped())), nil
}

func (s *server) Close(ctx context.Context, r *peerv1.DrafterServiceCloseRequest) (*peerv1.DrafterServiceCloseResponse, error) {
	d, err := s.of(r.GetDrafter())
	if err != nil {
		return nil, err
	}
	id := tandem.SessionID(r.GetSession())
	if d.owners.Check(id, rpc.Caller(ctx)) != nil {
		return &peerv1.DrafterServiceCloseResponse{}, nil // as for an unknown session
	}
	if err = d.Drafter.Close(ctx, id); err == nil {
		d.owners.Close(id, rpc.Caller(ctx))
		s.cfg.Trees.Forget(d.Name, id)
	}
	return &peerv1.DrafterServiceCloseResponse{}, err
}

// Claim answers with a copy of a tree.
func (s *server) Claim(_ context.Context, r *peerv1.ClaimRequest) (*peerv1.ClaimResponse, error) {
	payload, err := s.cfg.Trees.Copy(wire.ToHandle(r.GetHandle()))
	return &peerv1.ClaimResponse{Payload: payload}, err
}

func (s *server) Describe(_ context.Context, r *peerv1.DrafterServiceDescribeRequest) (*peerv1.DrafterServiceDescribeResponse, error) {
	named, err := s.of(r.GetDrafter())
	if err != nil {
		return nil, err
	}
	var d tandem.Description
	if named.Describe != nil {
		d = named.Describe()
	}
	d.Name, d.Drafters = named.Name, s.names()
	if s.cfg.Announced != nil {
		as := s.cfg.Announced()
		d.Instance, d.Draining = as.Instance, as.Draining
	}
	return &peerv1.DrafterServiceDescribeResponse{Description: wire.FromDescription(d)}, nil
}

func (s *server) Vocabulary(_ context.Context, r *peerv1.VocabularyRequest) (*peerv1.VocabularyResponse, error) {
	d, err := s.of(r.GetDrafter())
	switch {
	case err != nil:
		return nil, err
	case r.GetOffset() < 0 || r.GetLimit() < 1:
		return nil, tandem.Errorf(op, tandem.Invalid, "vocabulary from %d, %d pieces: want 0 or more, 1 or more", r.GetOffset(),
			r.GetLimit())
	case d.Vocabulary == nil:
		return nil, tandem.Errorf(op, tandem.Unsupported, "drafter %s does not tell its vocabulary", d.Name)
	}
	part := d.Vocabulary(int(r.GetOffset()), min(int(r.GetLimit()), maxPieces))
	size := 0
	for i, p := range part.Pieces {
		if size += len(p); size > maxPieceBytes && i > 0 {
			part.Pieces, part.Kinds = part.Pieces[:i], part.Kinds[:min(i, len(part.Kinds))]
			break
		}
	}
	return wire.FromVocabulary(part), nil
}

func (s *server) Target(stream grpc.ClientStreamingServer[peerv1.TargetRequest, peerv1.TargetResponse]) error {
	var d *drafter
	var fingerprint string
	var file []byte
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if d == nil {
			if d, err = s.of(r.GetDrafter()); err != nil {
				return err
			}
			if d.Target == nil {
				return tandem.Errorf(op, tandem.Unsupported, "drafter %s does not translate", d.Name)
			}
			if fingerprint = r.GetFingerprint(); fingerprint == "" {
				return tandem.Errorf(op, tandem.Invalid, "a target's vocabulary without a fingerprint")
			}
			if err := tandem.ValidName("fingerprint", fingerprint); err != nil {
				return tandem.Errorf(op, tandem.Invalid, "a target's vocabulary: %w", err)
			}
		}
		if len(file)+len(r.GetVocabulary()) > maxVocabularyBytes {
			return tandem.Errorf(op, tandem.Invalid, "the target's vocabulary has more than %d bytes", maxVocabularyBytes)
		}
		file = append(file, r.GetVocabulary()...)
	}
	if d == nil {
		return tandem.Errorf(op, tandem.Invalid, "a target's vocabulary without a part: want at least one")
	}
	if err := d.Target(fingerprint, file); err != nil {
		return err
	}
	return stream.SendAndClose(&peerv1.TargetResponse{})
}

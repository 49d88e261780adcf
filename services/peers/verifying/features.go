package verifying

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

const (
	// inlineFeatures is the size in bytes up to which rows travel inside the answer: a slot and a checksum are not worth it.
	inlineFeatures = 4 << 10
	// mostFeatures is the most bytes of rows in an answer; further rows are asked for again.
	mostFeatures = 1 << 20
	// featuresWait is how long a call waits for features at most, whatever its deadline.
	featuresWait = 30 * time.Second
)

// Features implements the server's side of tandem.FeatureSource. Any drafter that knows a session's id may ask for its features: ids
// are random, and only the gateway tells them, to the drafters of the session.
func (a *adapter) Features(ctx context.Context, r *peerv1.FeaturesRequest) (*peerv1.FeaturesResponse, error) {
	source := a.s.cfg.Features
	if source == nil {
		return nil, tandem.Errorf(op, tandem.Unsupported, "the verifier hands out no features")
	}
	ctx, cancel := context.WithTimeout(ctx, featuresWait)
	defer cancel()
	defer context.AfterFunc(a.s.life, cancel)()
	out, err := source.Features(ctx, wire.ToFeatureQuery(r))
	if err != nil {
		return nil, err
	}
	if most := max(mostFeatures/(2*out.Width), 1) * out.Width; len(out.Rows) > most {
		out.Rows = out.Rows[:most]
	}
	a.s.cfg.Counters.Add("features.rows", int64(out.Len()))
	return wire.FromFeatures(out, a.s.shareFeatures(ctx, r, out)), nil
}

// shareFeatures puts the rows of an answer into shared memory for a caller that has mapped it; zero if they travel in the answer.
func (s *Server) shareFeatures(ctx context.Context, r *peerv1.FeaturesRequest, f tandem.Features) shm.Handle {
	segment := s.cfg.Segment
	if segment == nil || r.GetMapped() != segment.ID() || 2*len(f.Rows) <= inlineFeatures {
		return shm.Handle{}
	}
	key := shm.Key{Drafter: fmt.Sprintf("%x/%.100s", rpc.Caller(ctx), r.GetDrafter()), Session: r.GetSession()}
	h, err := segment.Put(key, uint64(f.From), wire.MarshalRows(f.Rows))
	if err != nil { // every slot is leased, or the rows do not fit
		s.cfg.Counters.Add("features.no_slot", 1)
		return shm.Handle{}
	}
	s.cfg.Counters.Add("features.shared", 1)
	return h
}

// Mapping returns a copy of c for the drafter of that name. Features come through the verifier's shared memory while segment has it mapped,
// else inside answers. The caller owns segment, which may be nil.
func (c *Client) Mapping(segment *shm.Link, drafter string) *Client {
	return &Client{rpc: c.rpc, segment: c.segment, features: segment, drafter: drafter}
}

// Features implements tandem.FeatureSource over the wire. Further errors: Corrupt for an answer that contradicts itself or the
// question, and Stale if its lease ended before it was read.
func (c *Client) Features(ctx context.Context, q tandem.FeatureQuery) (tandem.Features, error) {
	m := wire.FromFeatureQuery(q)
	if m.Drafter = c.drafter; c.features != nil {
		m.Mapped = c.features.Segment()
	}
	r, err := c.rpc.Features(ctx, m)
	if err != nil {
		return tandem.Features{}, err
	}
	out, h, err := wire.ToFeatures(r)
	if err != nil {
		return tandem.Features{}, err
	}
	payload := r.GetRows()
	switch {
	case h == (shm.Handle{}):
	case c.features == nil || h.Segment != m.Mapped:
		return tandem.Features{}, tandem.Errorf(op, tandem.Corrupt,
			"verifier told features in segment %016x: want them in %016x, or in the answer", h.Segment, m.Mapped)
	default:
		if payload, err = c.features.Read(h); err != nil {
			return tandem.Features{}, err
		}
	}
	if out.Rows, err = wire.UnmarshalRows(payload); err == nil {
		err = out.Validate(q)
	}
	if err != nil {
		return tandem.Features{}, err
	}
	return out, nil
}

var _ tandem.FeatureSource = (*Client)(nil)

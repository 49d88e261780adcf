package verifying

import (
	"context"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/holding"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// Vectors implements the server's side of tandem.VectorSource.
func (a *adapter) Vectors(r *peerv1.VectorsRequest, stream grpc.ServerStreamingServer[peerv1.VectorsResponse]) error {
	source := a.s.cfg.Vectors
	if source == nil {
		return tandem.Errorf(op, tandem.Unsupported, "the verifier makes no vectors")
	}
	return holding.Serve(stream, func(p tandem.Progress) *peerv1.VectorsResponse {
		return &peerv1.VectorsResponse{State: &peerv1.VectorsResponse_Progress{Progress: wire.FromProgress(p)}}
	}, func(ctx context.Context, told func(tandem.Progress)) (*peerv1.VectorsResponse, error) {
		q := wire.ToVectorQuery(r)
		q.Progress = told
		out, err := source.Vectors(ctx, q)
		if err != nil {
			return nil, err
		}
		return &peerv1.VectorsResponse{State: &peerv1.VectorsResponse_Vectors{Vectors: wire.FromVectors(out)}}, nil
	})
}

// Vectors implements tandem.VectorSource over the wire. Further errors: Corrupt for an answer that does not answer q.
func (c *Client) Vectors(ctx context.Context, q tandem.VectorQuery) (tandem.Vectors, error) {
	ctx, cancel := context.WithTimeout(ctx, holding.Deadline)
	defer cancel()
	stream, err := c.rpc.Vectors(ctx, wire.FromVectorQuery(q))
	if err != nil {
		return tandem.Vectors{}, err
	}
	last, err := holding.Await(stream, func(m *peerv1.VectorsResponse) bool {
		if p := m.GetProgress(); p != nil && q.Progress != nil {
			q.Progress(wire.ToProgress(p))
		}
		return m.GetVectors() != nil
	})
	if err != nil {
		return tandem.Vectors{}, err
	}
	return wire.ToVectors(last.GetVectors(), len(q.Inputs))
}

var _ tandem.VectorSource = (*Client)(nil)

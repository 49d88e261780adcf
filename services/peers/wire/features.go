package wire

import (
	"encoding/binary"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/shm"
)

// FromFeatureQuery encodes q.
func FromFeatureQuery(q tandem.FeatureQuery) *peerv1.FeaturesRequest {
	return &peerv1.FeaturesRequest{Session: uint64(q.Session), Epoch: uint32(q.Epoch), From: int32(q.From), Until: int32(q.Until)}
}

// ToFeatureQuery decodes a query, which must still pass its Validate.
func ToFeatureQuery(r *peerv1.FeaturesRequest) tandem.FeatureQuery {
	return tandem.FeatureQuery{Session: tandem.SessionID(r.GetSession()), Epoch: tandem.Epoch(r.GetEpoch()),
		From: tandem.Position(r.GetFrom()), Until: tandem.Position(r.GetUntil())}
}

// FromFeatures encodes f, with a handle in place of its rows unless h is zero.
func FromFeatures(f tandem.Features, h shm.Handle) *peerv1.FeaturesResponse {
	out := &peerv1.FeaturesResponse{From: int32(f.From), Taps: fromTaps(f.Taps), Width: int32(f.Width)}
	if h != (shm.Handle{}) {
		out.Handle = FromHandle(h)
	} else {
		out.Rows = MarshalRows(f.Rows)
	}
	return out
}

// ToFeatures decodes an answer without its rows, and the handle under which they are; zero if they are in it. The result needs
// UnmarshalRows and Features.Validate. Errors: Corrupt.
func ToFeatures(r *peerv1.FeaturesResponse) (tandem.Features, shm.Handle, error) {
	out := tandem.Features{From: tandem.Position(r.GetFrom()), Taps: toTaps(r.GetTaps()), Width: int(r.GetWidth())}
	switch {
	case r.GetHandle() == nil:
		return out, shm.Handle{}, nil
	case len(r.GetRows()) > 0 || r.GetHandle().GetSegment() == 0:
		return out, shm.Handle{}, tandem.Errorf(op, tandem.Corrupt,
			"features with %d bytes of rows and a handle of segment %016x: want one", len(r.GetRows()), r.GetHandle().GetSegment())
	}
	return out, ToHandle(r.GetHandle()), nil
}

// MarshalRows encodes rows of features as the bytes of a payload: f16, little-endian.
func MarshalRows(rows []uint16) []byte {
	out := make([]byte, 2*len(rows))
	for i, v := range rows {
		binary.LittleEndian.PutUint16(out[2*i:], v)
	}
	return out
}

// UnmarshalRows decodes a payload of rows. Errors: Corrupt.
func UnmarshalRows(b []byte) ([]uint16, error) {
	if len(b)%2 != 0 {
		return nil, tandem.Errorf(op, tandem.Corrupt, "rows of features have %d bytes: want two for each value", len(b))
	}
	out := make([]uint16, len(b)/2)
	for i := range out {
		out[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	return out, nil
}

func fromTaps(taps []int) []int32 {
	var out []int32
	for _, n := range taps {
		out = append(out, int32(n))
	}
	return out
}

// toTaps decodes at most one tap too many.
func toTaps(taps []int32) []int {
	var out []int
	for _, n := range taps[:min(len(taps), tandem.MostTaps+1)] {
		out = append(out, int(n))
	}
	return out
}

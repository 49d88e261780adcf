package wire

import (
	"encoding/binary"
	"math"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

// FromVectorQuery encodes q.
func FromVectorQuery(q tandem.VectorQuery) *peerv1.VectorsRequest {
	out := &peerv1.VectorsRequest{Tenant: q.Tenant, Pooling: string(q.Pooling), Fingerprint: q.Fingerprint}
	for _, tokens := range q.Inputs {
		out.Inputs = append(out.Inputs, &peerv1.VectorInput{Tokens: FromTokens(tokens)})
	}
	return out
}

// ToVectorQuery decodes a query, whose values the verifier checks.
func ToVectorQuery(r *peerv1.VectorsRequest) tandem.VectorQuery {
	out := tandem.VectorQuery{Tenant: r.GetTenant(), Pooling: tandem.Pooling(r.GetPooling()), Fingerprint: r.GetFingerprint()}
	for _, x := range r.GetInputs() {
		out.Inputs = append(out.Inputs, ToTokens(x.GetTokens()))
	}
	return out
}

// FromVectors encodes v, whose rows have equal widths.
func FromVectors(v tandem.Vectors) *peerv1.Vectors {
	out := &peerv1.Vectors{Identity: string(v.Identity)}
	for _, row := range v.Rows {
		out.Width = int32(len(row))
		for _, x := range row {
			out.Rows = binary.LittleEndian.AppendUint32(out.Rows, math.Float32bits(x))
		}
	}
	return out
}

// ToVectors decodes an answer to a query of so many inputs. Errors: Corrupt.
func ToVectors(m *peerv1.Vectors, inputs int) (tandem.Vectors, error) {
	identity, err := ToIdentity(m.GetIdentity())
	if err != nil {
		return tandem.Vectors{}, err
	}
	width, rows := int64(m.GetWidth()), m.GetRows()
	if width < 1 || int64(len(rows)) != 4*width*int64(inputs) {
		return tandem.Vectors{}, tandem.Errorf(op, tandem.Corrupt, "vectors of width %d have %d bytes: want a width, and 4 bytes for each "+
			"number of %d vectors", width, len(rows), inputs)
	}
	out := tandem.Vectors{Identity: identity, Rows: make([][]float32, inputs)}
	for i := range out.Rows {
		out.Rows[i] = make([]float32, width)
		for k := range out.Rows[i] {
			out.Rows[i][k] = math.Float32frombits(binary.LittleEndian.Uint32(rows))
			rows = rows[4:]
		}
	}
	return out, nil
}

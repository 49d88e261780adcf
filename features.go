package tandem

import (
	"context"
	"math"
)

// FeatureSource hands out features: the target's hidden states at committed positions, which some drafts read. The verifier is one. A
// drafter asks for what it lacks, when it opens a session and before it drafts; nobody sends features unasked. Safe for concurrent use.
type FeatureSource interface {
	// Features returns the states that q asks for, as many as one answer holds, at least one if there is one. It waits while the first of
	// them is about to be computed. If it will not be computed, the answer has no rows and From = q.From. Errors: UnknownSession (not held,
	// or not yet), Stale (another epoch), Unsupported (the source has no states to hand out), Invalid, Unavailable, ctx's.
	Features(ctx context.Context, q FeatureQuery) (Features, error)
}

// FeatureQuery asks for the states of the positions [From, Until).
type FeatureQuery struct {
	Session SessionID
	Epoch   Epoch
	From    Position
	Until   Position
	Addr    string // of the verifier that holds the session (Place.Addr)
}

// Validate returns Invalid if q asks for nothing.
func (q FeatureQuery) Validate() error {
	if q.Session == 0 || q.From < 0 || q.Until <= q.From {
		return Errorf("features", Invalid, "positions %d to %d of session %v: want a session, 0 or more, and at least one", q.From, q.Until,
			q.Session)
	}
	return nil
}

// Features are the states of successive positions. States before From that were asked for are missing: they were never computed
// (Opened.Reused) or are forgotten.
type Features struct {
	From Position // of the first row
	// Taps says which hidden states a row holds, side by side in this order: N ≥ 1 is the residual stream after N layers, -1 the
	// state after the final norm.
	Taps  []int
	Width int      // values of a row: Taps · the target's width
	Rows  []uint16 // (rows, Width), f16; the receiver's
}

// MostTaps is how many hidden states a row of Features has at most.
const MostTaps = 16

// Len returns the number of rows.
func (f Features) Len() int {
	if f.Width < 1 {
		return 0
	}
	return len(f.Rows) / f.Width
}

// Validate returns Corrupt if f contradicts itself or does not answer q. It does not look at the values.
func (f Features) Validate(q FeatureQuery) error {
	const op = "features"
	switch n := f.Len(); {
	case len(f.Taps) < 1 || len(f.Taps) > MostTaps || f.Width < len(f.Taps) || f.Width%len(f.Taps) != 0:
		return Errorf(op, Corrupt, "rows of %d values of %d states: want 1 to %d states of equal width", f.Width, len(f.Taps), MostTaps)
	case len(f.Rows)%f.Width != 0:
		return Errorf(op, Corrupt, "%d values in rows of %d: want whole rows", len(f.Rows), f.Width)
	case f.From < q.From || f.From > q.Until || n > int(q.Until-f.From) || n > math.MaxInt32:
		return Errorf(op, Corrupt, "%d rows from position %d: asked for positions %d to %d", n, f.From, q.From, q.Until)
	}
	return nil
}

// Package mempool is the pool of a tandem within one process: without services, for tests and embedding.
package mempool

import (
	"context"

	"github.com/tandem-llm/tandem"
)

// Pool implements tandem.Pool. It hands every ticket to its verifier at once, and neither loses, repeats nor reorders any; it is full
// when the verifier is. The zero Pool has no verifier and takes no tickets: it is for drafters that only return their trees.
type Pool struct{ Verifier tandem.Verifier }

// Put implements tandem.Pool.
func (p Pool) Put(ctx context.Context, t tandem.Ticket) error {
	if p.Verifier == nil {
		return tandem.Errorf("pool", tandem.Unavailable, "no verifier takes the ticket of session %v", t.Session)
	}
	return p.Verifier.Submit(ctx, t)
}

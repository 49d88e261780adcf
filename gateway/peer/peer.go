// Package peer has what the gateway's calls of a verifier and of a drafter have in common: panics become errors, an Open is bounded by its
// progress, and closing a session is repeated until the peer answers.
package peer

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
)

const op = "generate"

// mostCloses bounds the attempts to close a session at a peer that does not answer.
const mostCloses = 30

// Guard runs f and returns a panic of it as an error (tandem.Panicked).
func Guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = tandem.Panicked(op, p)
		}
	}()
	return f()
}

// Closer closes sessions at peers.
type Closer struct {
	Timeout  time.Duration // of one attempt
	Counters *tandem.Counters
	Ending   func() bool // the gateway is to end: no second attempt
}

// Close closes a session by a peer's method at. A peer that is gone has forgotten it; one that does not answer is asked again, until
// the gateway is to end.
func (c *Closer) Close(id tandem.SessionID, at func(context.Context, tandem.SessionID) error) {
	for range mostCloses {
		ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
		err := Guard(func() error { return at(ctx, id) })
		cancel()
		if err == nil {
			return
		}
		c.Counters.Add("sessions.close_failed", 1)
		if tandem.KindOf(err) != tandem.Deadline || c.Ending() {
			return
		}
	}
}

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

// Guard runs f and returns its error. If f panics, Guard returns the panic as an error (tandem.Panicked).
func Guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = tandem.Panicked(op, p)
		}
	}()
	return f()
}

// Closer closes sessions at peers. Safe for concurrent use.
type Closer struct {
	Timeout  time.Duration // of one attempt
	Counters *tandem.Counters
	Ending   func() bool // reports whether the gateway is to end; then there is no second attempt
}

// Close closes a session at a peer, whose method is at. It repeats the call while the peer does not answer in time, at most mostCloses
// times and not once the gateway is to end. Any other error ends it: a peer that is gone has forgotten the session.
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

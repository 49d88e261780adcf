package source

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
)

// Call is one Propose that runs in the background. It belongs to the session's goroutine.
type Call struct {
	judge  func(context.Context, *Call) (round.Draft, error) // of the source that was asked
	cut    func(*Call, time.Duration)                        // likewise; nil: it ends when it begins
	ask    round.Ask
	trial  bool // asked only to see whether it is answered
	done   chan struct{}
	cancel context.CancelFunc

	// valid once done is closed
	got   tandem.Proposed
	err   error
	begun time.Time
	took  time.Duration
}

// Ended reports whether the call has ended, so that Draft may be called.
func (c *Call) Ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// Draft evaluates a call that has ended; call it once. The result is as Source.Propose's. ctx is the request's: if it has ended, the
// source is not to blame.
func (c *Call) Draft(ctx context.Context) (round.Draft, error) { return c.judge(ctx, c) }

// Cut gives up a call that has taken took so far, long after others have answered.
func (c *Call) Cut(took time.Duration) { c.cut(c, took) }

package grow

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/schedule"
)

// Job is one call of Propose. Until it has ended it belongs to the schedule's goroutine.
type Job struct {
	*schedule.Call
	Proposal tandem.Proposal // as it came; once the session has the job, with the Bounds within which it can draft

	// Results, valid once Wait has returned nil.
	Tree      tandem.Tree
	Busy      time.Duration // of passes, and of what was done between them
	Passes    int
	Reused    int           // nodes of Tree that had been run before the call
	Ahead     time.Duration // what drafting ahead of the call took
	Hindsight tandem.Hindsight

	came  time.Time
	known int // explored nodes from before the call
}

// NewJob returns the job of a call that comes now and is given up when ctx ends.
func NewJob(ctx context.Context, p tandem.Proposal) *Job {
	return &Job{Call: schedule.NewCall(ctx), Proposal: p, came: time.Now()}
}

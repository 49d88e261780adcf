package grow

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
)

// Parts is how a session drafts. A kind of draft composes it: each part is a value with its own state, which the kind has of its own or
// takes from another kind. All methods but Text.Open belong to the schedule's goroutine.
type Parts struct {
	Cache  Cache
	Trees  Trees
	Passes Passes
	Text   Text  // nil: the schedule computes all of the text when the session is opened
	Ahead  Ahead // nil: nothing is drafted ahead
}

// Cache follows the committed tokens.
type Cache interface {
	// Adopt makes the checked proposal's tokens the session's, and the draft's cache agree with them. An error of kind Exhausted, or any
	// other, ends the session.
	Adopt(p tandem.Proposal) error
}

// Trees grows the session's trees, each in passes of the draft model.
type Trees interface {
	// Begin starts the tree of the session's new Job.
	Begin()
	// Grow goes on with the tree as far as it can without a pass; done: the tree is complete. begun is when the job's unfinished work
	// began, for what drafting has cost so far.
	Grow(begun time.Time) (t tandem.Tree, done bool)
	// Nodes adds to a part at most n nodes of the tree that must be run.
	Nodes(part *engine.Part, n int)
}

// Passes is what a pass has beside the tokens of the text and of the tree, and what becomes of its results.
type Passes interface {
	// Complete gives a part all that the model reads beside its tokens. tree: the part is for the tree, in a pass of at most so many rows.
	Complete(part *engine.Part, rows int, tree bool)
	// Take takes what a pass has computed for the session.
	Take(r Result)
}

// Text brings the text that a session is opened with into the cache, piece by piece (Session.Fill).
type Text interface {
	// Open ends the opening of the session by o: all of its text but the last token is in the cache when it returns nil. It runs in the
	// goroutine of Open's caller and may wait.
	Open(ctx context.Context, o tandem.Opening) error
	// Closed is told that the session has ended.
	Closed()
}

// Ahead decides about drafting ahead of the verdict (Lookahead).
type Ahead interface {
	// Goes reports whether the session, which has answered p, is to draft ahead.
	Goes(p tandem.Proposal) bool
	// Renew gives a part, of at most so many rows, what must be computed before anything can be drafted ahead. wait: with this part, or
	// until Schedule.Spare is called again, nothing else is.
	Renew(part *engine.Part, rows int) (wait bool)
}

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

// Gate is where proposals wait for what a kind of draft reads.
type Gate interface {
	// Begin sees to it that the job is started (Draft.Begin) soon. Errors: Unavailable during Shutdown, and ctx's; then it is not.
	Begin(ctx context.Context, j *Job) error
	// Stop ends what is done in the background and waits for it. Begin fails from then on.
	Stop()
}

// Traits is what the parts that all kinds share must know of a kind.
type Traits struct {
	Skipped    int    // tokens at the beginning of a text that have no row in the cache; what is computed depends on them nevertheless
	Whole      bool   // the draft reads all of a text, without a Window
	Mute       bool   // rows of the text guess nothing
	Candidates int    // best tokens that are wanted of each row of a tree's pass at least
	Gate       Gate   // nil: proposals are started at once
	OwnTarget  string // why the draft cannot be translated for a target of another vocabulary, behind "draft NAME"; "": it can
}

// Result is what a pass has computed for a session.
type Result struct {
	Part  schedule.Part
	Out   *engine.Output
	Tail  int           // wanted row of Out of the last token of Part.Extend
	First int           // wanted row of Out of the first of Part.Nodes
	Tree  bool          // the part was for the tree of the session's job
	Cost  time.Duration // of a row, if it was run ahead of a proposal; else 0
}

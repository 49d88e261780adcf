package grow

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
)

// Parts is how a session drafts. A kind of draft puts it together: each part is a value with a state of its own, and two kinds may have the
// same one. All methods but Opener.Open are called on the schedule's goroutine.
type Parts struct {
	Adopter Adopter
	Trees   Trees
	Passes  Passes
	Opener  Opener // nil: the schedule computes all of the text when the session is opened
	Ahead   Ahead  // nil: nothing is drafted ahead
}

// Adopter follows the committed tokens.
type Adopter interface {
	// Adopt makes the tokens of a checked proposal the session's (Prefix.Follow), and the cache agree with them. Errors: Exhausted if there
	// is no memory for that. The session is dropped after any error.
	Adopt(p tandem.Proposal) error
}

// Trees grows the session's trees, each in passes of the draft model.
type Trees interface {
	// Begin starts the tree of the session's new Job.
	Begin()
	// Grow goes on with the tree as far as it can without a pass; done: the tree is complete, and t is it. Drafting has taken Job.Busy and
	// the time since begun.
	Grow(begun time.Time) (t tandem.Tree, done bool)
	// Nodes adds to a part at most n nodes of the tree that must be run.
	Nodes(part *engine.Part, n int)
}

// Chains is a Trees of a kind whose passes may have chains (engine.Part).
type Chains interface {
	Trees
	// Chain returns how many further rows the tree wants behind the one that must be run, before it has been run: see Growth.Chain.
	Chain() int
}

// Passes says what a pass has beside the tokens of the text and of the tree, and takes the results.
type Passes interface {
	// Complete gives a part what the model reads beside its tokens. tree: the part is for the job's tree. It may have that many rows in
	// all.
	Complete(part *engine.Part, rows int, tree bool)
	// Take takes what a pass has computed for the session; r.Out is valid until it returns.
	Take(r Result)
}

// Opener brings the text that a session is opened with into the cache, piece by piece (Session.Fill).
type Opener interface {
	// Open waits until the cache holds all of the text that o opens the session with but its last token. It runs in the goroutine of the
	// caller of Draft.Open. Errors: those of ctx, and what has ended the session.
	Open(ctx context.Context, o tandem.Opening) error
	// Closed is told that the session has ended.
	Closed()
}

// Ahead decides about drafting ahead of the verdict (Lookahead).
type Ahead interface {
	// Goes reports whether the session, which has answered p, is to draft ahead.
	Goes(p tandem.Proposal) bool
	// Renew gives a part, of at most so many rows, what must be computed before anything is drafted ahead. wait: nothing is drafted ahead
	// in this part. If the part stays empty, it is not asked again until Schedule.Spare is called.
	Renew(part *engine.Part, rows int) (wait bool)
}

// Job is one call of Propose. It belongs to the schedule's goroutine until its Call ends.
type Job struct {
	*schedule.Call
	Proposal tandem.Proposal // as it came; from Draft.Begin on with Bounds that the session can keep

	// Results, valid once Wait has returned nil.
	Tree      tandem.Tree
	Busy      time.Duration // what passes took, and the work between them
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

// Gate is where proposals wait for what a kind of draft reads beside tokens.
type Gate interface {
	// Propose waits and then calls Draft.Begin on the schedule's goroutine. Errors: Unavailable after Stop, and those of ctx; then the job
	// is not begun.
	Propose(ctx context.Context, j *Job) error
	// Stop ends what is done in the background and waits for it. Propose fails from then on.
	Stop()
}

// Traits is what this package must know of a kind. The zero value is that of a draft that reads tokens alone.
type Traits struct {
	Skipped    int  // tokens at the beginning of a text that have no row in the cache, though other rows depend on them
	Whole      bool // the draft reads all of a text: it has no Window
	Mute       bool // rows of the text guess nothing
	Candidates int  // how many of the best tokens a row of a tree's pass must have, at least
	Gate       Gate // nil: proposals wait for nothing
	// OwnTarget says why the draft is only for a target of its own vocabulary, in words that follow "draft NAME"; "": it is for others too
	// (package translate).
	OwnTarget string
}

// Result is what a pass has computed for a session.
type Result struct {
	Part  schedule.Part
	Out   *engine.Output
	Tail  int           // wanted row of Out of the last token of Part.Extend
	First int           // wanted row of Out of the first of Part.Nodes
	Tree  bool          // the part was for the job's tree
	Cost  time.Duration // of a row, if the part was run ahead of a proposal; else 0
}

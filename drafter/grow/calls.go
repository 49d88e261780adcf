package grow

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec"
)

// Open opens a session of that kind of draft: see tandem.Drafter. It returns when the cache holds all tokens that the model will see but
// the last. A prefix that other sessions of the tenant have computed is not computed again (engine.Model.NewShared). Further errors:
// Unsupported if the tokens exceed the draft model's context; Stale for an epoch older than the one held; Exhausted if there is no memory
// for them beside the sessions that are held. After that there are no drafts for this session until it is opened again.
func (d *Draft) Open(ctx context.Context, kind Kind, o tandem.Opening) (tandem.Opened, error) {
	var s *Session
	opened, err := d.Sched.Open(ctx, o, func() (_ schedule.Session, err error) {
		s, err = d.enter(kind, o)
		return s, err
	})
	if err != nil {
		return opened, err
	}
	if opener := s.Parts.Opener; opener != nil {
		if err = opener.Open(ctx, o); err != nil {
			return opened, err
		}
	}
	opened.Identity, opened.Hindsight = d.Config.Model.Names().Identity, s.hindsight
	return opened, nil
}

// Propose has a job begun, at once or when what the kind of draft reads has come (Gate). j.Wait waits for its results. Errors: Unavailable
// after Stop, and those of ctx; then the job is not begun.
func (d *Draft) Propose(ctx context.Context, j *Job) error {
	if g := d.Traits.Gate; g != nil {
		return g.Propose(ctx, j)
	}
	return d.Post(func() { d.Begin(j) })
}

// Post runs fn on the schedule's goroutine, without waiting for it. Errors: Unavailable after Stop.
func (d *Draft) Post(fn func()) error {
	if !d.Sched.Post(fn) {
		return tandem.Errorf("propose", tandem.Unavailable, "drafter is shutting down")
	}
	return nil
}

// Begin begins a job, unless its caller has given up. If it cannot, the job ends with the error: UnknownSession, those of Prefix.Check,
// Unsupported for more tokens than the draft model holds, Exhausted without memory. Call it, and everything below, on the schedule's
// goroutine.
func (d *Draft) Begin(j *Job) {
	if j.GivenUp() != nil {
		return
	}
	if err := owner.Guard(func() error { return d.begin(j) }); err != nil {
		j.End(err)
	}
}

// begin makes the job its session's. After an error it is not.
func (d *Draft) begin(j *Job) error {
	const op = "propose"
	p := j.Proposal
	s := d.Session(p.Session)
	if s == nil {
		return tandem.Errorf(op, tandem.UnknownSession, "session %v is not held", p.Session)
	}
	if err := s.Text.Check(p); err != nil {
		return err
	}
	if int(p.Base) > s.capacity {
		return tandem.Errorf(op, tandem.Unsupported, "%d tokens: the draft model holds %d", p.Base, s.capacity)
	}
	d.Sched.End(s, tandem.Errorf(op, tandem.Stale, "session %v: another proposal came", s.ID))
	begun := time.Now()
	p.Bounds = tandem.Bounds{Nodes: min(p.Bounds.Nodes, s.Text.MaxNodes), Depth: min(p.Bounds.Depth, s.capacity-int(p.Base)),
		Width: min(p.Bounds.Width, maxWidth, s.Limits.PassRows)}
	if int(p.Base) <= d.Traits.Skipped {
		p.Bounds = tandem.Bounds{} // there is no row to draft from
	}
	s.goal = 0
	if err := owner.Guard(func() error { return s.Parts.Adopter.Adopt(p) }); errors.Is(err, tandem.Exhausted) {
		d.Sched.Drop(s, err) // it would have to copy pages that others share
		return err
	} else if err != nil {
		err = tandem.Errorf(op, tandem.Internal, "session %v: %w", s.ID, err)
		d.Sched.Fail(s, err)
		return err
	}
	j.Ahead = s.comeBack()
	j.Proposal, j.known = p, s.Explored.Len()
	s.Job = j
	s.Parts.Trees.Begin()
	d.Sched.Queue(s, j.Call, j.came, max(s.Missing(), 1))
	if err := owner.Guard(func() error { s.advance(begun); return nil }); err != nil {
		d.Sched.Fail(s, err)
	}
	return nil
}

// advance goes on with the session's tree until a pass is needed, or the tree and with it the job is finished. The time since begun counts
// as the job's.
func (s *Session) advance(begun time.Time) {
	j, d := s.Job, s.Draft
	tree, done := s.Parts.Trees.Grow(begun)
	if !done {
		j.Busy += time.Since(begun)
		return
	}
	j.Tree, j.Hindsight = tree, s.Recall.Of(len(s.Text.Tokens))
	j.Busy += time.Since(begun)
	if plan := j.Proposal.Plan; len(plan.Verify) > 0 {
		j.Tree, _ = spec.Cut(j.Tree, plan, j.Busy)
	}
	if s.Explored.Len() > 0 {
		j.Reused = s.Explored.Sent(j.Tree, j.known)
	}
	d.Sched.End(s, nil)
	if a := s.Parts.Ahead; a != nil && a.Goes(j.Proposal) {
		s.Lookahead.begin(j.Proposal, min(d.Config.Ahead, s.Limits.TreeRows-s.Cache.Nodes()))
		d.Sched.Spare(s)
	}
}

// comeBack ends the session's drafting ahead when its next proposal's tokens have been adopted. It returns the time that drafting ahead
// took.
func (s *Session) comeBack() time.Duration {
	s.Draft.Sched.Rest(s)
	ran, busy := s.Lookahead.end()
	switch {
	case ran > 0 && s.Explored.Len() > 0:
		s.Draft.Config.Counters.Add("ahead.hits", 1)
	case ran > 0:
		s.Draft.Config.Counters.Add("ahead.misses", 1)
	}
	return busy
}

package drafter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec"
)

// session is one request's state in the draft model; see Drafter for its invariants.
type session struct {
	schedule.Entry
	grow.Prefix
	d         *Drafter
	capacity  int // positions in the cache
	seq       *engine.Sequence
	own       int          // tokens of the draft model
	standIn   tandem.Token // of the draft model, for tokens that it lacks
	prompt    int          // how many of its tokens the target did not draw
	sampling  tandem.Sampling
	explored  spec.Explored // below the last token; nothing if Len < len(tokens)
	recall    spec.Recall
	children  *spec.Children   // what its passes are expected to bring
	hindsight tandem.Hindsight // of what it was opened with
	ahead     lookahead
	job       *job // the latest; in progress while the session is queued
	grower    grower
	skipped   int // tokens at the beginning that have no row
	goal      int // while the session is opened: tokens that the cache is to hold so far; else 0
}

// held returns how many of the session's tokens are in the cache, or left out of it for good.
func (s *session) held() int { return s.seq.End() + s.skipped }

// filling reports whether the session is queued for tokens of the text that it is opened with, not for a tree.
func (s *session) filling() bool { return s.goal > 0 }

// job is one call of Propose. Until it has ended it belongs to the schedule's goroutine.
type job struct {
	*schedule.Call
	proposal tandem.Proposal // with the Bounds within which the session can draft
	known    int             // explored nodes from before the call

	tree   tandem.Tree // results, valid once Wait has returned nil
	busy   time.Duration
	passes int
	reused int // nodes from before the call
	ahead  time.Duration

	hindsight tandem.Hindsight
}

func newJob(ctx context.Context) *job { return &job{Call: schedule.NewCall(ctx)} }

// session returns the session of that id, or nil. Call it, and everything below, on the schedule's goroutine.
func (d *Drafter) session(id tandem.SessionID) *session {
	s, _ := d.sched.Session(id).(*session)
	return s
}

// open makes the session of o.
func (d *Drafter) open(o tandem.Opening) (*session, error) {
	cfg := d.cfg.Model.Config()
	if err := grow.CheckOpening(o, cfg.Vocab); err != nil {
		return nil, err
	}
	if n := len(o.Tokens); n > cfg.Context {
		return nil, tandem.Errorf("open", tandem.Unsupported, "%d tokens: draft model %s has a context of %d", n, cfg.Name, cfg.Context)
	}
	if err := d.sched.Replace(o); err != nil {
		return nil, err
	}
	s := &session{Prefix: grow.NewPrefix(o, cfg.Vocab), d: d, capacity: min(int(o.Limit), cfg.Context),
		own: cfg.Vocab, standIn: d.cfg.Model.Vocab().StandIn(), prompt: cmp.Or(o.Prompt, len(o.Tokens)), sampling: o.Sampling,
		children: spec.NewChildren(d.children)}
	if s.sampling.Typical() {
		s.sampling.Temperature = 0 // likely tokens are accepted, not those that the noise leans to
	}
	seq, err := d.sequence(s, o)
	if err != nil {
		return nil, err
	}
	s.Entry, s.seq = schedule.NewEntry(o, schedule.Shared(seq)), seq
	s.grower = s.newGrower(seq.Len())
	return s, nil
}

// sequence returns the session's state in the model.
func (d *Drafter) sequence(s *session, o tandem.Opening) (*engine.Sequence, error) {
	tenant, prompt := o.Tenant, s.known(o.Tokens[:len(o.Tokens)-1])
	if features, _ := d.cfg.Model.StateWidth(); features > 0 { // the first token has no row, but the target's states depend on it
		s.skipped, tenant, prompt = 1, fmt.Sprintf("%d %s", o.Tokens[0], tenant), prompt[min(len(prompt), 1):]
	}
	if w := d.Window(); w.Last > 0 {
		return d.cfg.Model.NewWindowed(tenant, prompt, s.capacity, d.cfg.TreeRows, w)
	}
	return d.cfg.Model.NewShared(tenant, prompt, s.capacity, d.cfg.TreeRows)
}

// Left implements schedule.Session.
func (s *session) Left(error) { s.grower.closed() }

// start starts the job of a Propose call that came at time came, unless its caller has given up already.
func (d *Drafter) start(p tandem.Proposal, j *job, came time.Time) {
	if j.GivenUp() != nil {
		return
	}
	if err := owner.Guard(func() error { return d.propose(p, j, came) }); err != nil {
		j.End(err)
	}
}

// propose starts the job, or returns why it cannot; then the session does not get the job.
func (d *Drafter) propose(p tandem.Proposal, j *job, came time.Time) error {
	const op = "propose"
	s := d.session(p.Session)
	if s == nil {
		return tandem.Errorf(op, tandem.UnknownSession, "session %v is not held", p.Session)
	}
	if err := s.Check(p); err != nil {
		return err
	}
	if int(p.Base) > s.capacity {
		return tandem.Errorf(op, tandem.Unsupported, "%d tokens: the draft model holds %d", p.Base, s.capacity)
	}
	d.sched.End(s, tandem.Errorf(op, tandem.Stale, "session %v: another proposal came", s.Prefix.Session))
	begun := time.Now()
	p.Bounds = tandem.Bounds{Nodes: min(p.Bounds.Nodes, s.MaxNodes), Depth: min(p.Bounds.Depth, s.capacity-int(p.Base)),
		Width: min(p.Bounds.Width, maxWidth, d.cfg.Model.MaxRows(), d.cfg.Model.MaxWanted())}
	if int(p.Base) <= s.skipped {
		p.Bounds = tandem.Bounds{} // there is no row to draft from
	}
	s.goal = 0
	if err := owner.Guard(func() error { return s.grower.adopt(p) }); errors.Is(err, tandem.Exhausted) {
		d.sched.Drop(s, err) // it would have to copy pages that others share
		return err
	} else if err != nil {
		err = tandem.Errorf(op, tandem.Internal, "session %v: %w", s.Prefix.Session, err)
		d.sched.Fail(s, err)
		return err
	}
	j.ahead = d.comeBack(s)
	j.proposal, j.known = p, s.explored.Len()
	s.job = j
	s.grower.begin()
	d.sched.Queue(s, j.Call, came, max(s.Missing(), 1))
	if err := owner.Guard(func() error { d.advance(s, begun); return nil }); err != nil {
		d.sched.Fail(s, err)
	}
	return nil
}

// advance goes on with the session's tree until a pass is needed, or the tree and with it the job is finished. The time since begun counts
// as the job's.
func (d *Drafter) advance(s *session, begun time.Time) {
	j := s.job
	tree, done := s.grower.grow(begun)
	if !done {
		j.busy += time.Since(begun)
		return
	}
	j.tree, j.hindsight = tree, s.recall.Of(len(s.Tokens))
	j.busy += time.Since(begun)
	if plan := j.proposal.Plan; len(plan.Verify) > 0 {
		j.tree, _ = spec.Cut(j.tree, plan, j.busy)
	}
	if s.explored.Len() > 0 {
		j.reused = s.explored.Sent(j.tree, j.known)
	}
	d.sched.End(s, nil)
	if s.grower.goes(j.proposal) {
		d.goAhead(s, j.proposal)
	}
}

// use counts what the time ahead has saved that went into explored nodes of a tree.
func (s *session) use(nodes []int32) {
	useful := time.Duration(0)
	for _, node := range nodes {
		useful += s.explored.Use(node)
	}
	if useful > 0 {
		s.d.cfg.Counters.Add("ahead.useful_ns", int64(useful))
	}
}

// rowsOf turns explored nodes into rows of the cache, in place.
func rowsOf(nodes []int32) []int32 {
	for i := range nodes {
		nodes[i]--
	}
	return nodes
}

package drafter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec"
)

// session is one request's state in the draft model; see Drafter for its invariants.
type session struct {
	schedule.Seat
	prefix
	d         *Drafter
	capacity  int // positions in the cache
	seq       *engine.Sequence
	own       int          // tokens of the draft model
	standIn   tandem.Token // of the draft model, for tokens that it lacks
	prompt    int          // how many of its tokens the target did not draw
	sampling  tandem.Sampling
	explored  spec.Explored // below the last token; nothing if Len < len(tokens)
	recall    spec.Recall
	hindsight tandem.Hindsight // of what it was opened with
	ahead     ahead
	job       *job       // the latest; in progress while the session is queued
	fed       *fed       // nil: the draft reads tokens alone
	behind    []prompted // rows of the pass that is running
	goal      int        // of a fed session: tokens that the cache is to hold while the session is opened; see Drafter.nourish
}

// held returns how many of the session's tokens are in the cache. A draft with states has no row for the first.
func (s *session) held() int {
	if s.fed != nil {
		return s.seq.Len() + 1
	}
	return s.seq.Len()
}

// filling reports whether the session is queued for tokens of the text that it is opened with, not for a tree.
func (s *session) filling() bool { return s.goal > 0 }

// job is one call of Propose. Until it has ended it belongs to the schedule's goroutine.
type job struct {
	*schedule.Call
	proposal tandem.Proposal // with the Bounds within which the session can draft
	growth
	sketched *spec.Sketch // the tree of a draft with prompt tokens so far, in place of growth
	explore  int          // of sketched's open nodes that the next pass is to explore
	known    int          // explored nodes from before the call

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
	if err := checkOpening(o, cfg.Vocab); err != nil {
		return nil, err
	}
	if n := len(o.Tokens); n > cfg.Context {
		return nil, tandem.Errorf("open", tandem.Unsupported, "%d tokens: draft model %s has a context of %d", n, cfg.Name, cfg.Context)
	}
	if err := d.sched.Replace(o); err != nil {
		return nil, err
	}
	s := &session{prefix: newPrefix(o, cfg.Vocab), d: d, capacity: min(int(o.Limit), cfg.Context),
		own: cfg.Vocab, standIn: d.cfg.Model.Vocab().StandIn(), prompt: cmp.Or(o.Prompt, len(o.Tokens)), sampling: o.Sampling}
	if s.sampling.Typical() {
		s.sampling.Temperature = 0 // likely tokens are accepted, not those that the noise leans to
	}
	tenant, prompt := o.Tenant, s.known(o.Tokens[:len(o.Tokens)-1])
	features, own := d.cfg.Model.StateWidth()
	if features > 0 { // the first token has no row, but the target's states depend on it
		tenant, prompt = fmt.Sprintf("%d %s", o.Tokens[0], tenant), prompt[min(len(prompt), 1):]
	}
	seq, err := d.cfg.Model.NewShared(tenant, prompt, s.capacity, d.cfg.TreeRows)
	if err != nil {
		return nil, err
	}
	if features > 0 {
		s.fed = newFed(o.Epoch, seq.Len(), features, own)
		d.fed.Store(o.Session, s.fed)
	}
	s.Seat, s.seq = schedule.NewSeat(o, schedule.Shared(seq)), seq
	return s, nil
}

// Left implements schedule.Session.
func (s *session) Left(error) { s.d.fed.CompareAndDelete(s.id, s.fed) }

// start starts the job of a Propose call that came at time came, unless its caller has given up already. news are features that
// have come for it, nil if none have.
func (d *Drafter) start(p tandem.Proposal, j *job, came time.Time, news *tandem.Features) {
	if s := d.session(p.Session); s != nil && s.fed != nil && s.epoch == p.Epoch && news != nil {
		_ = d.learn(s, *news) // it is counted
	}
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
	if err := s.check(p); err != nil {
		return err
	}
	if int(p.Base) > s.capacity {
		return tandem.Errorf(op, tandem.Unsupported, "%d tokens: the draft model holds %d", p.Base, s.capacity)
	}
	d.sched.End(s, tandem.Errorf(op, tandem.Stale, "session %v: another proposal came", s.id))
	begun := time.Now()
	p.Bounds = tandem.Bounds{Nodes: min(p.Bounds.Nodes, s.maxNodes), Depth: min(p.Bounds.Depth, s.capacity-int(p.Base)),
		Width: min(p.Bounds.Width, maxWidth, d.cfg.Model.MaxRows(), d.cfg.Model.MaxWanted())}
	if s.fed != nil && p.Base == 1 {
		p.Bounds = tandem.Bounds{} // there is no row to draft from
	}
	s.goal = 0
	if err := owner.Guard(func() error { return s.adopt(p) }); errors.Is(err, tandem.Exhausted) {
		d.sched.Drop(s, err) // it would have to copy pages that others share
		return err
	} else if err != nil {
		err = tandem.Errorf(op, tandem.Internal, "session %v: %w", s.id, err)
		d.sched.Fail(s, err)
		return err
	}
	j.ahead = d.comeBack(s)
	j.proposal, j.growth, j.known = p, growth{grower: spec.NewGrower(s.tokens[p.Base-1], p), temper: p.Temper}, s.explored.Len()
	s.job = j
	d.sched.Queue(s, j.Call, came, max(s.Missing(), 1))
	if err := owner.Guard(func() error { d.advance(s, begun); return nil }); err != nil {
		d.sched.Fail(s, err)
	}
	return nil
}

// adopt makes the checked proposal's tokens the session's, and the cache agree with them. If the new tokens
// lead to an explored node, that becomes the root, and what was explored below it stays.
func (s *session) adopt(p tandem.Proposal) error {
	if s.fed != nil {
		return s.adoptFed(p)
	}
	held := len(s.tokens)
	keep := s.follow(p)
	s.recall.Keep(keep)
	if keep == held && s.explored.Len() > 0 {
		s.explored.Hits(s.tokens[held:], func(i int, hit bool) { s.recall.Saw(held+i, hit) })
	}
	fresh := int(p.Base) - 1 // the position of the root: it must be run for its logits unless they are known
	if s.explored.Len() == 0 || keep < held {
		s.explored.Clear()
		return s.seq.Truncate(min(s.seq.Len(), keep, fresh))
	}
	path := s.explored.Follow(s.tokens[held:])
	if len(path) == int(p.Base)-held && p.Bounds.Width <= s.explored.Width() {
		root := int32(0)
		if len(path) > 0 {
			root = path[len(path)-1]
		}
		return s.seq.Reroot(rowsOf(path), rowsOf(s.explored.Reroot(root)))
	}
	s.explored.Clear()
	if held > fresh {
		return s.seq.Truncate(fresh)
	}
	return s.seq.Commit(rowsOf(path[:min(len(path), fresh-held)]))
}

// rowsOf turns explored nodes into rows of the cache, in place.
func rowsOf(nodes []int32) []int32 {
	for i := range nodes {
		nodes[i]--
	}
	return nodes
}

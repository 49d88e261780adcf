package drafter

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec"
)

// session is one request's state in the draft model; see Drafter for its invariants.
type session struct {
	prefix
	capacity int // positions in the cache
	seq      *engine.Sequence
	explored spec.Explored // below the last token; nothing if Len < len(tokens)
	recall   spec.Recall
	ahead    ahead
	job      *job // what is being done; nil if nothing
	opened   *job // what opened it
}

// job is one call of Open or Propose. Until it has ended it belongs to the owner.
type job struct {
	ctx      context.Context // of the call
	ended    chan error
	proposal tandem.Proposal // with the Bounds that the session can follow
	growth                   // no grower for Open
	known    int             // explored nodes from before the call

	tree   tandem.Tree // results, valid once ended has delivered nil
	busy   time.Duration
	passes int
	reused int // tokens of Open that were found in memory; nodes of Propose from before the call
	ahead  time.Duration

	hindsight tandem.Hindsight
}

func newJob(ctx context.Context) *job { return &job{ctx: ctx, ended: make(chan error, 1)} }

// end tells the caller how the job ended; the first time counts.
func (j *job) end(err error) {
	select {
	case j.ended <- err:
	default:
	}
}

// wait returns how the job ended, or that its caller gave up.
func (j *job) wait() error {
	select {
	case err := <-j.ended:
		return err
	case <-j.ctx.Done():
		return tandem.Errorf("drafter", tandem.KindOf(j.ctx.Err()), "given up while drafting: %w", j.ctx.Err())
	}
}

// open starts the job of an Open call. Runs on the owner's goroutine, as everything below.
func (d *Drafter) open(o tandem.Opening, j *job) error {
	const op = "open"
	cfg := d.cfg.Model.Config()
	if err := checkOpening(o, cfg.Vocab); err != nil {
		return err
	}
	if n := len(o.Tokens); n > cfg.Context {
		return tandem.Errorf(op, tandem.Unsupported, "%d tokens: draft model %s has a context of %d", n, cfg.Name, cfg.Context)
	}
	if old := d.sessions[o.Session]; old != nil {
		if err := old.replace(o); err != nil {
			return err
		}
		d.drop(old, tandem.Errorf(op, tandem.Stale, "session %v was opened again", o.Session))
	}
	capacity := min(int(o.Limit), cfg.Context)
	seq, err := d.cfg.Model.NewShared(o.Tenant, o.Tokens[:len(o.Tokens)-1], capacity, d.cfg.TreeRows)
	d.countEvicted()
	if err != nil {
		return err
	}
	j.reused = seq.Len()
	s := &session{prefix: newPrefix(o), capacity: capacity, seq: seq, opened: j}
	d.sessions[s.id] = s
	d.begin(s, j)
	return nil
}

// start starts the job of a Propose call, unless its caller has given up already.
func (d *Drafter) start(p tandem.Proposal, j *job) {
	if j.ctx.Err() != nil {
		return
	}
	if err := owner.Guard(func() error { return d.propose(p, j) }); err != nil {
		j.end(err)
	}
}

// propose starts the job, or returns why it cannot; then the job is not the session's.
func (d *Drafter) propose(p tandem.Proposal, j *job) error {
	const op = "propose"
	s := d.sessions[p.Session]
	if s == nil {
		return tandem.Errorf(op, tandem.UnknownSession, "session %v is not held", p.Session)
	}
	if err := s.check(p, d.cfg.Model.Config().Vocab); err != nil {
		return err
	}
	if int(p.Base) > s.capacity {
		return tandem.Errorf(op, tandem.Unsupported, "%d tokens: the draft model holds %d", p.Base, s.capacity)
	}
	if s.job != nil {
		d.end(s, tandem.Errorf(op, tandem.Stale, "session %v: another proposal came", s.id))
	}
	begun := time.Now()
	p.Bounds = tandem.Bounds{Nodes: min(p.Bounds.Nodes, s.maxNodes), Depth: min(p.Bounds.Depth, s.capacity-int(p.Base)),
		Width: min(p.Bounds.Width, maxWidth, d.cfg.Model.MaxRows(), d.cfg.Model.MaxWanted())}
	if err := owner.Guard(func() error { return s.adopt(p) }); err != nil {
		err = tandem.Errorf(op, tandem.Internal, "session %v: %w", s.id, err)
		d.fail(s, err)
		return err
	}
	j.ahead = d.comeBack(s)
	j.proposal, j.growth, j.known = p, growth{grower: spec.NewGrower(s.tokens[p.Base-1], p), temper: p.Temper}, s.explored.Len()
	d.begin(s, j)
	if err := owner.Guard(func() error { d.advance(s, begun); return nil }); err != nil {
		d.fail(s, err)
	}
	return nil
}

// adopt makes the checked proposal's tokens the session's and the cache agree with them. If the tokens that
// are new lead to an explored node, that becomes the root, and what was explored below it stays.
func (s *session) adopt(p tandem.Proposal) error {
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

// opened ends the job of an Open call whose tokens are in.
func (d *Drafter) opened(s *session) {
	if n := s.job.reused; n > 0 {
		d.cfg.Counters.Add("prefix.hits", 1)
		d.cfg.Counters.Add("prefix.reused_tokens", int64(n))
	}
	s.job.hindsight = s.recall.Of(len(s.tokens))
	d.end(s, nil)
}

func (d *Drafter) begin(s *session, j *job) {
	s.job = j
	d.active = append(d.active, s)
}

// end ends the session's job. What was explored for it stays.
func (d *Drafter) end(s *session, err error) {
	j := s.job
	if j == nil {
		return
	}
	s.job, s.used = nil, time.Now()
	d.active = slices.DeleteFunc(d.active, func(x *session) bool { return x == s })
	j.end(err)
	d.answered = true
}

// drop forgets the session, but not what it computed (engine.Sequence.Close); its job, if there is one, ends with err.
func (d *Drafter) drop(s *session, err error) {
	delete(d.sessions, s.id)
	d.rest(s)
	d.end(s, err)
	s.seq.Close()
	d.countEvicted()
}

// countEvicted counts what was forgotten of earlier prefixes since the last time.
func (d *Drafter) countEvicted() {
	if now := d.cfg.Model.EvictedPages(); now > d.evicted {
		d.cfg.Counters.Add("prefix.evicted_pages", now-d.evicted)
		d.evicted = now
	}
}

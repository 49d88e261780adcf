package drafter

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/owner"
	"github.com/tandem-llm/tandem/spec"
)

// session is one request's state in the draft model; see Drafter for its invariants.
type session struct {
	id       tandem.SessionID
	epoch    tandem.Epoch
	limit    tandem.Position
	maxNodes int
	capacity int // positions in the cache
	seq      *engine.Sequence
	tokens   []tandem.Token
	hash     tandem.PrefixHash
	draft    spec.Draft // rooted at the last token; no nodes if there is none
	job      *job       // what is being done; nil if nothing
	opened   *job       // what opened it
	used     time.Time
}

// job is one call of Open or Propose. Until it has ended it belongs to the owner.
type job struct {
	ctx     context.Context // of the call
	ended   chan error
	builder *spec.Builder // nil for Open
	width   int
	rows    []spec.Row // to run next; the root is not one of them

	tree tandem.Tree // results, valid once ended has delivered nil
	busy time.Duration
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
	switch n := len(o.Tokens); {
	case o.Session == 0:
		return tandem.Errorf(op, tandem.Invalid, "session is 0: want any other number")
	case n == 0:
		return tandem.Errorf(op, tandem.Invalid, "no tokens: want at least one")
	case n > int(o.Limit):
		return tandem.Errorf(op, tandem.Invalid, "%d tokens exceed the limit of %d", n, o.Limit)
	case n > cfg.Context:
		return tandem.Errorf(op, tandem.Unsupported, "%d tokens: draft model %s has a context of %d", n, cfg.Name, cfg.Context)
	case o.MaxNodes < 1:
		return tandem.Errorf(op, tandem.Invalid, "trees of %d nodes: want at least 1", o.MaxNodes)
	}
	if err := checkTokens(op, o.Tokens, cfg.Vocab); err != nil {
		return err
	}
	if old := d.sessions[o.Session]; old != nil {
		if o.Epoch < old.epoch {
			return tandem.Errorf(op, tandem.Stale, "epoch %d of session %v: epoch %d is held", o.Epoch, o.Session, old.epoch)
		}
		d.drop(old, tandem.Errorf(op, tandem.Stale, "session %v was opened again", o.Session))
	}
	capacity := min(int(o.Limit), cfg.Context)
	seq, err := d.cfg.Model.NewSequence(capacity, d.cfg.TreeRows)
	if err != nil {
		return err
	}
	s := &session{id: o.Session, epoch: o.Epoch, limit: o.Limit, maxNodes: o.MaxNodes, capacity: capacity, seq: seq,
		tokens: slices.Clone(o.Tokens), hash: tandem.EmptyPrefix.Add(o.Tokens...), opened: j, used: time.Now()}
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
	if err := owner.Guard(func() error { return s.adopt(p) }); err != nil {
		err = tandem.Errorf(op, tandem.Internal, "session %v: %w", s.id, err)
		d.fail(s, err)
		return err
	}
	policy := tandem.Policy{Nodes: min(p.Policy.Nodes, s.maxNodes), Depth: min(p.Policy.Depth, int(s.limit-p.Base), d.cfg.Model.Config().Context-int(p.Base)),
		Width: min(p.Policy.Width, maxWidth, d.cfg.Model.MaxRows(), d.cfg.Model.MaxWanted())}
	root := s.tokens[p.Base-1]
	j.width = policy.Width
	j.builder = spec.NewLevels(root, policy)
	if d.cfg.BestFirst {
		j.builder = spec.NewBestFirst(root, policy)
	}
	d.begin(s, j)
	if len(j.builder.Pending(0)) == 0 { // a plain policy: the root alone
		s.finish()
		d.end(s, nil)
	}
	return nil
}

// check refuses a proposal that the session cannot follow; it changes nothing.
func (s *session) check(p tandem.Proposal, vocab int) error {
	const op = "propose"
	switch held := len(s.tokens); {
	case p.Epoch != s.epoch:
		return tandem.Errorf(op, tandem.Stale, "epoch %d of session %v: epoch %d is held", p.Epoch, s.id, s.epoch)
	case p.Base < 1 || p.From < 0 || int(p.Base)-int(p.From) != len(p.Suffix):
		return tandem.Errorf(op, tandem.Invalid, "base %d from %d with %d tokens: want base = from + tokens, at least 1", p.Base, p.From, len(p.Suffix))
	case p.Base > s.limit:
		return tandem.Errorf(op, tandem.Invalid, "base %d exceeds the session's limit of %d", p.Base, s.limit)
	case int(p.From) > held:
		return tandem.Errorf(op, tandem.Stale, "tokens from %d: %d are held", p.From, held)
	}
	if err := checkTokens(op, p.Suffix, vocab); err != nil {
		return err
	}
	hash := s.hash
	if int(p.From) < len(s.tokens) {
		hash = tandem.EmptyPrefix.Add(s.tokens[:p.From]...)
	}
	if hash = hash.Add(p.Suffix...); hash != p.Hash {
		return tandem.Errorf(op, tandem.Stale, "hash of %d tokens is %016x here, %016x there", p.Base, uint64(hash), uint64(p.Hash))
	}
	if ahead := s.tokens[p.From:]; len(ahead) > len(p.Suffix) && slices.Equal(ahead[:len(p.Suffix)], p.Suffix) {
		return tandem.Errorf(op, tandem.Stale, "base %d: the session went on to %d", p.Base, len(s.tokens))
	}
	return nil
}

// adopt makes the checked proposal's tokens the session's and the cache agree with them.
func (s *session) adopt(p tandem.Proposal) error {
	held, keep := len(s.tokens), int(p.From)
	for keep < min(held, int(p.Base)) && s.tokens[keep] == p.Suffix[keep-int(p.From)] {
		keep++
	}
	s.tokens = append(s.tokens[:p.From], p.Suffix...)
	s.hash = p.Hash
	s.used = time.Now()
	fresh := int(p.Base) - 1 // the root's position: it must be run for its logits
	if n := s.seq.Len(); n > min(keep, fresh) {
		s.draft = spec.Draft{}
		return s.seq.Truncate(min(keep, fresh))
	} else if n < held { // no tree stands
		return nil
	}
	var path []int32
	for _, node := range s.draft.Follow(s.tokens[held:fresh]) {
		if s.draft.Rows[node] < 0 {
			break
		}
		path = append(path, s.draft.Rows[node])
	}
	s.draft = spec.Draft{}
	return s.seq.Commit(path)
}

func checkTokens(op string, tokens []tandem.Token, vocab int) error {
	for i, t := range tokens {
		if t < 0 || int(t) >= vocab {
			return tandem.Errorf(op, tandem.Invalid, "token %d is %d: vocabulary has %d", i, t, vocab)
		}
	}
	return nil
}

func (d *Drafter) begin(s *session, j *job) {
	s.job = j
	d.active = append(d.active, s)
}

// end ends the session's job. A tree that was not finished is forgotten; the prefix stays.
func (d *Drafter) end(s *session, err error) {
	j := s.job
	if j == nil {
		return
	}
	s.job, s.used = nil, time.Now()
	d.active = slices.DeleteFunc(d.active, func(x *session) bool { return x == s })
	if err != nil {
		s.draft = spec.Draft{}
		_ = s.seq.Truncate(s.seq.Len()) // its own length is always allowed
	}
	j.end(err)
}

// drop forgets the session; its job, if there is one, ends with err.
func (d *Drafter) drop(s *session, err error) {
	delete(d.sessions, s.id)
	d.end(s, err)
	s.seq.Close()
}

// finish takes the tree of a Propose job; the job ends after it.
func (s *session) finish() {
	b := s.job.builder
	s.draft, s.job.tree = b.Draft(), b.Draft().Tree // two copies: the pool will own one
}

// room returns how many more rows of the tree may be run, in all and so also in a pass.
func (d *Drafter) room(s *session) int {
	return min(d.cfg.TreeRows-s.seq.Nodes(), d.cfg.Model.MaxRows(), d.cfg.Model.MaxWanted())
}

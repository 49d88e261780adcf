package verifier

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/verifier/accept"
	"github.com/tandem-llm/tandem/verifier/disk"
	"github.com/tandem-llm/tandem/verifier/features"
	"github.com/tandem-llm/tandem/verifier/guesses"
	"github.com/tandem-llm/tandem/verifier/outbox"
)

// shared is what all sessions work with. Sessions are the schedule's goroutine's, and so are guesses, sampler and crowded; the others are
// safe for concurrent use.
type shared struct {
	model    *engine.Model
	events   tandem.Events
	counters *tandem.Counters
	sched    *schedule.Schedule
	out      *outbox.Outbox
	features *features.Store // nil: none are handed out
	keeper   *disk.Keeper    // nil: prefixes are in memory alone
	grammars *accept.Grammars

	guesses *guesses.Maker
	sampler sample.Sampler
	crowded crowded
}

// crowded are sessions that were dropped for lack of memory, and neither opened again nor closed since: their next ticket is told so. Their
// number is bounded, since a gateway may never come back.
type crowded map[tandem.SessionID]struct{}

func (c crowded) add(id tandem.SessionID) {
	for other := range c {
		if len(c) < outbox.MostMissing {
			break
		}
		delete(c, other)
	}
	c[id] = struct{}{}
}

// session is one request's state in the target model; see Verifier for its invariants. Its methods run on the schedule's goroutine.
type session struct {
	schedule.Entry
	*shared
	limit      tandem.Position // of tokens: the smaller of the gateway's limit and the context
	maxNodes   int             // of a ticket's tree
	widest     int             // nodes of it that a pass verifies
	tenant     string
	kept       int // tokens that were handed to the keeper
	text       accept.Text
	seq        *engine.Sequence
	ticket     *check         // the one that waits
	verdict    tandem.Verdict // the last; Base 0 if there is none
	accepted   []int32        // tree rows of its path, not yet in place
	selfDrafts []string       // whose guesses Opened is to carry
	first      []tandem.Guess // for Opened
	begun      time.Time      // when it was opened
	took       took           // of the latest pass, until Settle
}

// took is what Settle needs of a session's part of a pass.
type took struct {
	out      *engine.Output
	part     int // of out
	extended int // rows before the tree's
}

// newSession returns the session of o, with at most limit tokens and a constraint, nil for none. Its state in the model is seq.
func newSession(o tandem.Opening, limit int, allowed *accept.Constraint, seq *engine.Sequence, with *shared) *session {
	return &session{Entry: schedule.NewEntry(o, schedule.Shared(seq)), shared: with, limit: tandem.Position(limit), maxNodes: o.MaxNodes,
		widest: widest(with.model, o),
		tenant: o.Tenant, text: accept.New(o, allowed, &with.sampler), seq: seq, selfDrafts: o.SelfDrafts, begun: time.Now()}
}

// prepare checks the tree of a ticket and cuts it to what the session has room for. Every error is the fault of the tree's maker, except
// that of a full session.
func (s *session) prepare(c *check) error {
	const op = "ticket"
	root, tree := s.text.Root(), c.ticket.Tree
	if tree.Tokens == nil {
		tree = tandem.Root(root)
	}
	deepest := s.limit - c.ticket.Base - 1 // a path of that many nodes leaves room for the token after it
	if deepest < 0 {
		return tandem.Errorf(op, tandem.Invalid, "base %d: session %v holds at most %d tokens", c.ticket.Base, s.ID, s.limit)
	}
	if err := tree.Validate(s.maxNodes, s.model.Config().Vocab); err != nil {
		return err
	}
	tree, err := s.guesses.Prompts(tree)
	if err != nil {
		return err
	}
	if tree.Tokens[0] != root {
		return tandem.Errorf(op, tandem.Invalid, "root is token %d: token %d is committed at %d", tree.Tokens[0], root, c.ticket.Base-1)
	}
	c.cut(tree, int(deepest), s.widest)
	return nil
}

// queue has a prepared ticket verified in a pass.
func (s *session) queue(c *check) {
	s.ticket = c
	s.sched.Queue(s, nil, c.at.came, c.tree.Len())
}

// answer gives the verdict of a pass on the session's ticket.
func (s *session) answer(c *check, verdict tandem.Verdict) {
	s.verdict = verdict
	s.counters.Add("verdicts", 1)
	c.answer(verdict)
	s.answered()
}

// refuse answers the session's ticket with the reason why there is no verdict.
func (s *session) refuse(c *check, k tandem.Kind, message string) {
	c.refuse(k, message)
	s.answered()
}

// answered makes room for another ticket.
func (s *session) answered() {
	s.ticket = nil
	s.sched.End(s, nil)
}

package grow

import (
	"cmp"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/spec"
)

// Session is one request's state in the draft model. It belongs to the schedule's goroutine.
//
// Explored keeps the model's results. So a row that the next tree wants costs nothing if it was run
// before, whether for a tree that was cut, for a branch that was not taken, or ahead of time.
//
// Invariants between passes:
//  1. Text is what the gateway committed, as far as the drafter was told.
//  2. The cache holds its first Len tokens, Len < len(tokens) unless something is explored: the last token is left
//     out so that the next pass starts from its logits.
//  3. If something is explored, Len = len(tokens), its root is the last token, and its node i is tree row i-1.
//  4. The cache is rolled back only where it contradicts the committed tokens or the root must be run
//     again; nodes that were run become positions, and their descendants stay tree rows, without being run
//     again.
//
// Where the draft skips tokens (Traits.Skipped), the cache holds that many fewer.
type Session struct {
	schedule.Entry
	Draft     *Draft
	Text      Prefix
	Cache     *engine.Sequence
	Vocab     Vocabulary
	Explored  spec.Explored // below the last token; nothing if the cache lacks that token
	Recall    spec.Recall   // which tokens of the text the draft would have guessed
	Limits    Limits
	Lookahead Lookahead
	Job       *Job // the latest; in progress while the session is queued
	Parts     Parts

	capacity  int              // tokens that it can have
	prompt    int              // how many of its tokens the target did not draw
	goal      int              // while the session is opened: tokens that the cache is to hold so far; else 0
	hindsight tandem.Hindsight // of what it was opened with
}

// Kind is a kind of draft, of one draft model.
type Kind interface {
	// Traits returns what this package must know of it. They never change.
	Traits() Traits
	// Parts puts together those of a session that is opened, whose cache begins with found rows. It runs on the schedule's goroutine.
	Parts(s *Session, found int) Parts
}

// Session returns the session of that id, or nil. Call it on the schedule's goroutine.
func (d *Draft) Session(id tandem.SessionID) *Session {
	s, _ := d.Sched.Session(id).(*Session)
	return s
}

// enter makes the session of o.
func (d *Draft) enter(kind Kind, o tandem.Opening) (*Session, error) {
	cfg := d.Config.Model.Config()
	if err := CheckOpening(o, cfg.Vocab); err != nil {
		return nil, err
	}
	if n := len(o.Tokens); n > cfg.Context {
		return nil, tandem.Errorf("open", tandem.Unsupported, "%d tokens: draft model %s has a context of %d", n, cfg.Name, cfg.Context)
	}
	if err := d.Sched.Replace(o); err != nil {
		return nil, err
	}
	s := &Session{Draft: d, Text: NewPrefix(o, cfg.Vocab), capacity: min(int(o.Limit), cfg.Context),
		prompt: cmp.Or(o.Prompt, len(o.Tokens)),
		Limits: Limits{TreeRows: d.Config.TreeRows, PassRows: min(d.Config.Model.MaxRows(), d.Config.Model.MaxWanted()),
			Pace: d.Sched.Pace, Children: spec.NewChildren(d.children)}}
	s.Vocab = Vocabulary{Target: s.Text.Vocab, Sampling: o.Sampling, own: cfg.Vocab, standIn: d.Config.Model.Vocab().StandIn(),
		sampler: &d.sampler}
	if s.Vocab.Sampling.Typical() {
		s.Vocab.Sampling.Temperature = 0 // likely tokens are accepted, not those that the noise leans to
	}
	s.Lookahead = Lookahead{explored: &s.Explored, limits: &s.Limits}
	var err error
	if s.Cache, err = s.sequence(o); err != nil {
		return nil, err
	}
	s.Entry = schedule.NewEntry(o, schedule.Shared(s.Cache))
	if s.Parts = kind.Parts(s, s.Cache.Len()); s.Parts.Opener == nil {
		s.goal = len(s.Text.Tokens) - 1
	}
	return s, nil
}

// sequence returns the session's state in the model.
func (s *Session) sequence(o tandem.Opening) (*engine.Sequence, error) {
	d, tenant, prompt := s.Draft, o.Tenant, s.Vocab.Known(o.Tokens[:len(o.Tokens)-1])
	if n := min(d.Traits.Skipped, len(o.Tokens)); n > 0 {
		tenant, prompt = fmt.Sprint(o.Tokens[:n], tenant), prompt[min(len(prompt), n):]
	}
	if w := d.Window(); w.Last > 0 {
		return d.Config.Model.NewWindowed(tenant, prompt, s.capacity, d.Config.TreeRows, w)
	}
	return d.Config.Model.NewShared(tenant, prompt, s.capacity, d.Config.TreeRows)
}

// Room returns how many tokens the text may still get.
func (s *Session) Room() int { return s.capacity - len(s.Text.Tokens) }

// Held returns how many tokens the cache holds, counting those that never have a row in it (Traits.Skipped).
func (s *Session) Held() int { return s.Cache.End() + s.Draft.Traits.Skipped }

// filling reports whether the session is queued for tokens of the text that it is opened with, not for a tree.
func (s *Session) filling() bool { return s.goal > 0 }

// Missing implements schedule.Session: the tokens that the cache lacks before the session is open, or before its tree can grow.
func (s *Session) Missing() int {
	if s.Opening() || s.filling() {
		return max(s.Cache.Lacks(s.goal-s.Draft.Traits.Skipped), 0)
	}
	return s.Cache.Lacks(len(s.Text.Tokens) - s.Draft.Traits.Skipped)
}

// Fill is for an Opener: it queues the session until the cache holds the first n of its tokens, and then c ends. It returns false, and does
// not end c, if the cache holds them already. Filled must follow in either case.
func (s *Session) Fill(c *schedule.Call, n int) (queued bool) {
	if s.goal = n; s.Missing() == 0 {
		return false
	}
	s.Draft.Sched.Queue(s, c, time.Now(), s.Missing())
	return true
}

// Filled follows a Fill. last: it was the last one of the n tokens with which the session is opened, and the answer to Open has hindsight
// of them.
func (s *Session) Filled(n int, last bool) {
	if s.goal = 0; last {
		s.hindsight = s.Recall.Of(n)
	}
}

// Width returns how many candidates of each node the session wants from its passes: a few more than
// its trees may be wide, because the target often draws the next best one instead of a draft.
func (s *Session) Width() int {
	if n := s.Explored.Width(); n > 0 {
		return n
	}
	return min(max(s.Job.Proposal.Bounds.Width, leastWidth), maxWidth)
}

// Trust returns how often guesses of levels below the first, which one pass foretells, have been right in sessions that draw as this one
// does.
func (s *Session) Trust() *spec.Trust {
	if s.Vocab.Sampling.Temperature > 0 {
		return &s.Draft.trust[1]
	}
	return &s.Draft.trust[0]
}

// Use counts the time that was spent ahead on these explored nodes, which a tree uses now.
func (s *Session) Use(nodes []int32) {
	useful := time.Duration(0)
	for _, node := range nodes {
		useful += s.Explored.Use(node)
	}
	if useful > 0 {
		s.Draft.Config.Counters.Add("ahead.useful_ns", int64(useful))
	}
}

// Retain gives up all explored nodes, and their rows in the cache, but the root and those in used, which is ascending and is overwritten.
// It returns the new number of each node in used. The root stays 0.
func (s *Session) Retain(used []int32) (index map[int32]int32) {
	index = make(map[int32]int32, len(used))
	known := 1
	for i, n := range used {
		index[n] = int32(i + 1)
		if int(n) < s.Job.known {
			known++
		}
	}
	s.Explored.Retain(used)
	if err := s.Cache.Reroot(nil, RowsOf(used)); err != nil {
		panic(err)
	}
	s.Job.known = min(s.Job.known, known)
	return index
}

// RowsOf turns explored nodes below the root into tree rows of the cache, in place: node i is row i-1.
func RowsOf(nodes []int32) []int32 {
	for i := range nodes {
		nodes[i]--
	}
	return nodes
}

package source

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/peer"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/text/grammar"
)

// Shared is what the sources of all sessions of a gateway have in common. Safe for concurrent use.
type Shared struct {
	Roster     *roster.Roster
	Run        func(func()) // starts a goroutine that Shutdown waits for
	Closer     *peer.Closer
	Events     tandem.Events
	Counters   *tandem.Counters
	ProposeMin time.Duration // shortest deadline of a Propose
	ProposeMax time.Duration // longest
	Stall      time.Duration // of an Open without progress
	Vocab      int
	Words      Words // of the target; nil: nobody drafts by constraints

	grammars   grammar.Cache
	accuracies accuracies
	recycled   successors
}

// Session is what sources know of their session. It belongs to the session's goroutine.
type Session struct {
	Text     *round.Text
	Opening  func() tandem.Opening                 // the session as it is now
	Traced   func(context.Context) context.Context // context of one more Open: muted if the trace is full
	Nodes    int                                   // most nodes of a tree, root included
	Sampling tandem.Sampling
	Tenant   string
	Names    []string // the drafters that may draft, in this order; nil: all
	strategy strategy.Strategy
	dues     []due // in the order in which they arose
}

// Complete fills in what a proposal says about the session. returned: the tree is to be returned, not put into the pool.
func (s *Session) Complete(p tandem.Proposal, returned bool) tandem.Proposal {
	q := s.Text.Question()
	p.Session, p.Epoch, p.Base, p.Hash, p.Return = s.Text.Session, q.Epoch, q.Base, q.Hash, returned
	if p.Growth != tandem.GrowPacer { // whose thresholds are of plain probabilities
		p.Temper = spec.DraftTemper(s.Sampling.Temperature)
	}
	return p
}

// trial is the smallest proposal.
func (s *Session) trial() tandem.Proposal {
	return s.Complete(tandem.Proposal{Bounds: tandem.Bounds{Nodes: 2, Depth: 1, Width: 1}}, true)
}

// ask returns what the answer to a proposal is checked against.
func (s *Session) ask(p tandem.Proposal) round.Ask {
	return round.Ask{Proposal: p, Root: s.Text.Root(), Nodes: s.Nodes}
}

// hindsight passes a source's hindsight on the session's first base tokens to the strategy. spent is the time of the pass that it took if
// nothing else was asked for, else 0.
func (s *Session) hindsight(name string, base tandem.Position, h tandem.Hindsight, spent time.Duration) {
	if int(base) <= s.Text.Len() {
		s.strategy.Hindsight(name, base, h, spent)
	}
}

// before returns the token before that at a place of the text, -1 at its begin.
func (s *Session) before(at int) tandem.Token {
	if at < 1 {
		return -1
	}
	return s.Text.Tokens[at-1]
}

// due is something to learn once a session's text has that many tokens.
type due struct {
	tokens int
	learn  func()
}

// settleDues learns what the text has become long enough for.
func (s *Session) settleDues() {
	rest := s.dues[:0]
	for _, d := range s.dues {
		if d.tokens <= s.Text.Len() {
			d.learn()
		} else {
			rest = append(rest, d)
		}
	}
	s.dues = rest
}

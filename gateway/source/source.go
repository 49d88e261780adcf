// Package source knows what a session may ask for drafts: drafter processes, and the target's self-drafts, whose guesses come with
// verdicts. A session asks both through Source; Set holds those of one session.
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
)

// Source is one drafter process or self-draft, as one session sees it from its Enlist to its Dismiss. It belongs to the session's
// goroutine.
type Source interface {
	// Name is the name that requests, strategies and statistics know it by.
	Name() string
	// Ready reports whether it can be asked for a tree now.
	Ready() bool
	// Propose asks for one tree and waits for it. A nil error means that the source has kept its contract and that the tree has been
	// returned, or, without p.Return, that a ticket with it is in the pool, even if it holds the root alone.
	Propose(ctx context.Context, p tandem.Proposal) (round.Draft, error)
	// Begin asks for one tree in the background; ended receives the call when it has ended.
	Begin(ctx context.Context, p tandem.Proposal, ended chan<- *Call) *Call
	// Usual returns how long it usually takes to answer, 0 if that is not known yet. waits is false if its answer is always there at once.
	Usual() (pace time.Duration, waits bool)
	// InPool reports whether it puts the ticket with its tree into the pool itself, unless the tree is to be returned.
	InPool() bool
	// Judge takes a round's judgement of its draft.
	Judge(round.Judgement)

	base() *common
	judge(context.Context, *Call) (round.Draft, error)
	cut(*Call, time.Duration)
	start(context.Context)     // makes a new source ready, or begins to
	tick(context.Context) bool // advances its state; true if it has opened the session again
	pending() bool             // it may be ready soon
	offers() bool              // tickets may ask it for guesses
	absent() string            // what keeps it from drafting
	follow(context.Context)    // sends it what was committed
	restart(context.Context)   // the session has a new epoch
	settle(context.Context, <-chan struct{})
	retire() <-chan struct{} // ends the session there; closes when that is done, nil: there is nothing to do
}

// Shared is what the sources of all sessions of a gateway have in common.
type Shared struct {
	Roster     *roster.Roster
	Run        func(func()) // starts a goroutine that Shutdown waits for
	Closer     *peer.Closer
	Events     tandem.Events
	Counters   *tandem.Counters
	ProposeMin time.Duration // of the deadline of a Propose
	ProposeMax time.Duration
	Stall      time.Duration // of an Open without progress
	Vocab      int

	accuracies accuracies
	recycled   successors
}

// Session is what sources know of their session.
type Session struct {
	Text     *round.Text
	Opening  func() tandem.Opening                 // the session as it is now
	Traced   func(context.Context) context.Context // for one more Open: muted if the trace is full
	Nodes    int                                   // no tree has more
	Sampling tandem.Sampling
	Tenant   string
	Names    []string // the drafters that may draft, in this order; nil: all
	strategy strategy.Strategy
}

// Complete fills in a proposal's fields about the session.
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

// state is where a session stands with one source.
type state uint8

const (
	unasked state = iota // not wanted yet
	opening              // an Open is under way
	ready                // it holds the session
	paused               // it failed; to be tried again at retry
	tried                // a trial Propose, for which no round waits, shows whether it answers again
	off                  // given up for this session
)

// states are the states' human-readable names.
var states = [...]string{unasked: "not asked yet", opening: "opening", ready: "busy", paused: "paused after a failure",
	tried: "tried again", off: "given up"}

// common is what a session keeps about every source.
type common struct {
	*Shared
	session *Session
	entry   *roster.Entry
	state   state
	stop    func() // ends what is under way when the source is given up; nil: nothing can be
}

func (c *common) base() *common { return c }
func (c *common) Name() string  { return c.entry.Name }
func (c *common) aside() bool   { return c.entry.Record.Conduct.Aside() }

// offend gives the source up for this session because it sent garbage, and counts that against it.
func (c *common) offend() {
	c.Counters.Add("drafter.garbage", 1)
	if c.entry.Record.Conduct.Offend(time.Now()) {
		c.Counters.Add("drafter.put_aside", 1)
	}
	c.giveUp()
}

// giveUp gives the source up for this session.
func (c *common) giveUp() {
	if c.state == off {
		return
	}
	c.state = off
	c.Counters.Add("drafter.quarantined", 1)
	if c.stop != nil {
		c.stop()
	}
}

// Judge implements Source.
func (c *common) Judge(j round.Judgement) {
	switch j {
	case round.Garbage:
		c.offend()
	case round.Suspicious:
		c.giveUp()
	}
}

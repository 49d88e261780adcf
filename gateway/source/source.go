// Package source knows what a session may ask for drafts: drafter processes, the target's self-drafts, whose guesses come with verdicts,
// and what the gateway drafts from earlier verdicts. A session asks all of them through Source; Set holds those of one session.
//
// A kind of source is a file with its type, and a row of kinds.
package source

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/gateway/round"
)

// Source drafts for one session, from its Enlist to its Dismiss. It belongs to the session's goroutine.
type Source interface {
	// Name is the name that requests, strategies and statistics know it by.
	Name() string
	// Ready reports whether it can be asked for a tree now.
	Ready() bool
	// Propose asks for one tree and waits for it. A nil error means that the source has kept its contract. With p.Return the tree was
	// returned; without, a ticket with it is in the pool, even if it has the root alone.
	Propose(ctx context.Context, p tandem.Proposal) (round.Draft, error)
	// Begin asks for one tree in the background. The call is sent to ended when it has ended, and ended must have room for it.
	Begin(ctx context.Context, p tandem.Proposal, ended chan<- *Call) *Call
	// Usual returns how long it usually takes to answer; 0: not known yet. waits is false if its answer is always there at once.
	Usual() (pace time.Duration, waits bool)
	// InPool reports whether, without Proposal.Return, it puts the ticket with its tree into the pool itself.
	InPool() bool
	// Judge takes the judgement of a round for which it has drafted.
	Judge(round.Judgement)

	base() *common
}

// opener is a source's part that opens the session at another process. A source without one is ready as soon as it is wanted.
type opener interface {
	start(context.Context)                   // begins to open the session
	tick(context.Context) (reopened bool)    // takes what has happened since the last tick
	pending() bool                           // it may be ready soon
	settle(context.Context, <-chan struct{}) // waits for start's end, until the channel closes
	follow(context.Context)                  // sends what was committed, for hindsight alone
	restart(context.Context)                 // the session has a new epoch
	retire() <-chan struct{}                 // closes the session; the channel closes when that is done, nil: it was never opened
}

// hearer is a source's part that drafts from what verdicts say beside their tokens. A source without one hears nothing of them.
type hearer interface {
	offers() bool                                                          // tickets may ask it for guesses
	ask(plain bool) (successors int)                                       // that the next verdict is to carry for each node
	committed(n int)                                                       // so many tokens were; the strategy learns of them after this
	idle(root tandem.Token, b tandem.Bounds) (got tandem.Proposed, d bool) // what it would have drafted for that round; d: it would have
	forget()                                                               // what it has heard is on another text than the next round's
	take(g tandem.Guess, b *bill)                                          // a guess that it was asked for; more than one may come
	verdict(t tandem.Tree, committed int, v *tandem.Verdict)               // on t, if that is known
}

// prompter is a source's part that has prompt nodes added to a tree, so that the verdict on that can carry its guesses.
type prompter interface {
	reserve() int                               // nodes of the next tree that are kept for them; 0: there is no room
	prompt(t tandem.Tree, most int) tandem.Tree // t with at most so many of them
	refused()                                   // by the verifier
}

// bill is what the guesses of one answer took together; those that are of use share it.
type bill struct {
	took time.Duration
	of   int // guesses
}

// share returns what one of them took.
func (b *bill) share() time.Duration { return max(b.took, 0) / time.Duration(b.of) }

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
	opened  bool     // it has held the session
	opens   opener   // nil: it needs none
	hears   hearer   // nil: it hears nothing of verdicts
	prompts prompter // nil: it needs no prompt nodes
	lacks   string   // what a source that is not given up or aside waits for; "": what its state says
	stop    func()   // ends what is under way when the source is given up; nil: nothing can be
}

func (c *common) base() *common { return c }
func (c *common) Name() string  { return c.entry.Name }
func (c *common) offered() bool { return c.state != off && !c.aside() }
func (c *common) aside() bool   { return c.entry.Record.Conduct.Aside() }

// absent returns what keeps the source from drafting.
func (c *common) absent() string {
	switch {
	case c.aside():
		return "put aside"
	case c.state != off && c.lacks != "":
		return c.lacks
	}
	return states[c.state]
}

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

package round

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec/learn"
)

// Rules are what all rounds of a session have in common.
type Rules struct {
	Wait         time.Duration // for a verdict before the ticket is put again; doubles with each repetition
	VerifierWait time.Duration // how long a lost verifier is waited for
	Nodes        int           // most nodes of a tree, root included
	Vocab        int
	Logprobs     bool // verdicts carry log-probabilities
}

// Plan is what one round drafts and what its ticket asks.
type Plan struct {
	strategy.Decision
	Question
	Session    tandem.SessionID
	Root       tandem.Token
	Bounds     tandem.Bounds                 // what the request's budget leaves of its bounds
	Guesses    []string                      // self-drafts that the ticket asks, for the round after
	Successors int                           // likely tokens after each node that the verdict is to carry
	Reserve    int                           // nodes of the ticket's tree that are kept for prompt nodes
	InPool     bool                          // one source is asked, and puts the ticket with its tree itself
	Prompt     func(tandem.Tree) tandem.Tree // adds prompt nodes to the ticket's tree; nil if Reserve is 0
	Pace       time.Duration                 // usual time of a round; 0 before the first
	Weights    *learn.Weights                // of the drafters' trees, where Mix does not merge them
}

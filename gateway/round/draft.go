package round

import (
	"time"

	"github.com/tandem-llm/tandem"
)

const op = "generate"

// Ask is a proposal, and what its answer is checked against.
type Ask struct {
	tandem.Proposal
	Root  tandem.Token // the committed token at Base-1
	Nodes int          // most nodes of a tree, root included
}

// Draft is what one source drafted for a round.
type Draft struct {
	Drafter  string
	Got      tandem.Proposed
	Busy     time.Duration // arithmetic of drafting within this round; none of a self-draft, whose guesses came before
	Guessing time.Duration // arithmetic of the guesses that a self-draft's tree is made of
	Begun    time.Time     // when it was asked
	Last     time.Time     // when it gave its answer before this one; zero: this is the first
	Extra    time.Duration // how much longer than usual it took, because it had to read committed tokens first
	Tried    bool          // it was asked to draft ahead after its answer before this one
	Away     time.Duration // what the call took beside the drafter's arithmetic: the way there and back; 0: not known
	Useful   time.Duration // of Got.Ahead: what drafting the reused nodes within the round would have taken
}

// Check returns an error if a drafter's answer breaks the contract of Propose. vocab is how many tokens there are. Without a.Return the
// answer may lack the tree, which the drafter has put into the pool itself.
func (a *Ask) Check(got tandem.Proposed, vocab int) error {
	const op = "propose"
	switch {
	case got.Nodes < 1 || got.Nodes > a.Nodes:
		return tandem.Errorf(op, tandem.Corrupt, "drafter says %d nodes: want 1 to %d", got.Nodes, a.Nodes)
	case got.Depth < 0 || got.Depth >= got.Nodes:
		return tandem.Errorf(op, tandem.Corrupt, "drafter says depth %d with %d nodes: want 0 to %d", got.Depth, got.Nodes, got.Nodes-1)
	case got.Busy < 0 || got.Ahead < 0 || got.Reused < 0 || got.Reused >= got.Nodes:
		return tandem.Errorf(op, tandem.Corrupt, "drafter says busy %v, ahead %v, %d of %d nodes reused: want none below 0", got.Busy,
			got.Ahead, got.Reused, got.Nodes)
	}
	if err := got.Hindsight.Validate(); err != nil || got.Tree.Tokens == nil && !a.Return {
		return err
	}
	if n := got.Tree.Prompts; n != 0 {
		return tandem.Errorf(op, tandem.Corrupt, "tree with %d prompt nodes: want none, the gateway places them", n)
	}
	if err := got.Tree.Validate(a.Nodes, vocab); err != nil {
		return err
	}
	if got.Tree.Tokens[0] != a.Root || got.Tree.Len() != got.Nodes {
		return tandem.Errorf(op, tandem.Corrupt,
			"tree of %d nodes with root %d: want the %d nodes that it is said to have, and token %d, committed at %d",
			got.Tree.Len(), got.Tree.Tokens[0], got.Nodes, a.Root, a.Base-1)
	}
	for i, lp := range got.Tree.LogProbs {
		if !(lp <= 1./(1<<10)) {
			return tandem.Errorf(op, tandem.Corrupt, "node %d has log-probability %v: want at most 0", i, lp)
		}
	}
	return nil
}

// Package strategy decides what the rounds of a session draft: the planner, LLMCad, Minions, and trees of one
// shape. It knows drafters only by their names; the gateway asks them.
package strategy

import (
	"fmt"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/learn"
)

// Strategy decides what each round of one session drafts, and learns from what came of it. A strategy never waits
// and never asks anybody; it has one user. Whatever it decides, the text stays the same.
//
// No strategy fails for lack of drafters: without any a round is plain, with one a vote is that one's own
// draft. All respect what the request allows: Bounds, Drafters, Vote and Without.
type Strategy interface {
	// Several reports whether it may ask more drafters than the first one.
	Several() bool
	// Decide returns what to draft next. ready are the drafters that can be asked; if only one is to be asked, it is the first. b is what
	// the request's budget leaves of its bounds. Either may be empty.
	Decide(ready []string, b tandem.Bounds) Decision
	// Wanted reports whether the Later ones of Decision.Asks are still to be asked. It is called when the others have drafted drafts.
	Wanted(drafts []Draft) bool
	// Opens reports whether the session is to be opened at a drafter from now on, or is to ask a self-draft. If not, and settled is set,
	// the session does without it for good; else Opens is called again before the next round. among are the names of all that may draft.
	Opens(drafter string, among []string) (open, settled bool)
	// Guesses returns those of the offered self-drafts that the ticket of the decided round is to ask. The next round can use what they
	// guess.
	Guesses(offered []string) []string
	// Prompts returns how many prompt rows a tree of nodes nodes is to have for a self-draft that Guesses has returned: an index in rows,
	// which ascend; −1: none. rows[i] prompt rows are expected to add gains[i] tokens to the round after.
	Prompts(selfDraft string, nodes int, rows []int, gains []float64) int
	// Explain returns the figures that have decided d, the latest decision, as text. It is called before Learn, for a d that asks a
	// drafter or was weighed against asking one.
	Explain(d Decision) string
	// Hindsight takes a drafter's hindsight on the session's first base tokens. It comes when the drafter was opened, with every draft,
	// and after Decision.Follow. spent is the time of the pass that the drafter ran for the hindsight alone; 0: it ran none.
	Hindsight(drafter string, base tandem.Position, h tandem.Hindsight, spent time.Duration)
	// Learn takes the outcome of a committed round, which the latest Decide has decided.
	Learn(o *Outcome)
	// HandOn folds what it has learned into Shared. It is called once, at the session's end.
	HandOn()
}

// options are what a strategy is made with.
type options struct {
	vote            tandem.Vote // never VoteAuto
	adaptive, ahead bool        // techniques that the request does not leave out
	prompt, output  int         // tokens: of the prompt, and to generate at most
	shared          *Shared
	weights         *learn.Weights // of the drafters, for its session
}

// Decision is what a round is to draft.
type Decision struct {
	Asks    []Ask       // none: the round is plain
	Later   int         // this many of Asks, the last ones, wait until the others have answered, and are asked if Wanted then says so
	Vote    tandem.Vote // VoteNone: the drafter asked puts the ticket; else how the drafts become one tree
	Nodes   int         // of the merged tree at most, root included
	Cut     tandem.Plan // by which the merged tree is cut; zero: by Nodes alone
	Mix     *spec.Mix   // merges the drafts; nil: the drafters' weights do
	Choice  string      // for Stats.Choices
	Without string      // Choice, if the Later ones are not asked
	Reason  string      // for Stats.Reasons
	Follow  []string    // drafters that are not asked, but told what was committed, for their hindsight
}

// unweighing is a strategy that weighs nothing: it ignores hindsight, opens every drafter, and asks for every guess that it may use with as
// many prompt rows as fit.
type unweighing struct{}

func (unweighing) Hindsight(string, tandem.Position, tandem.Hindsight, time.Duration) {}
func (unweighing) Wanted([]Draft) bool                                                { return true }
func (unweighing) Opens(string, []string) (open, settled bool)                        { return true, true }
func (unweighing) Prompts(_ string, _ int, rows []int, _ []float64) int               { return len(rows) - 1 }
func (unweighing) Guesses(offered []string) []string                                  { return offered }

// Ask is a drafter and the proposal for it, without session and tokens.
type Ask struct {
	Drafter  string
	Proposal tandem.Proposal
}

// Draft is what one drafter drafted for a round.
type Draft struct {
	Drafter string
	Got     tandem.Proposed
	Extra   time.Duration // how much longer than usual it took, because it had to read committed tokens first
	Away    time.Duration // what the call took beside the drafter's arithmetic; 0: not known
}

// Outcome is the result of a decision.
type Outcome struct {
	Decision Decision
	Drafts   []Draft // of those that answered in time, in the order of Decision.Asks
	Idle     []Draft // what self-drafts that had guessed, but were not asked, would have drafted
	Tree     tandem.Tree
	Prompts  int  // prompt nodes that were verified with Tree, for the guesses of the next round
	Merged   bool // Tree is made of several drafts
	Voted    int  // index in Drafts of the one that the majority voted for; else 0
	Verdict  tandem.Verdict
	Judged   bool          // the whole Tree was verified, so that Verdict says something about it
	Tokens   int           // committed
	AtEnd    bool          // text or budget ended with this round
	Lossy    bool          // a ticket or verdict was lost on the way
	Wall     time.Duration // from the round's start to its commit; with the time of the guesses that it used, not of those for the next
	Rest     time.Duration // the part of Wall in neither draft nor target arithmetic
}

// Plain is the choice of a decision that asks nobody.
const Plain = "plain"

// Reasons of decisions, for Stats.Reasons; the planner's are learn.Reason. The gateway sets the exported ones, which it
// alone can know.
const (
	reasonFixed      = "fixed"      // as asked for
	reasonThreshold  = "threshold"  // until no branch is likelier than α
	reasonLength     = "length"     // as long as the length rule says
	reasonTransition = "transition" // the same, while that length is not judged yet
	ReasonNotAsked   = "plain: not asked for"
	ReasonBudget     = "plain: the budget ends"
	ReasonNobody     = "plain: nobody drafts"
	ReasonNoDraft    = "plain: no draft came" // although it was asked for
)

// poll sends one proposal to all that are ready if vote wants several drafts, else to the first.
func poll(ready []string, vote tandem.Vote, proposal tandem.Proposal, reason string) Decision {
	if len(ready) == 0 || proposal.Bounds.Plain() {
		return Decision{Vote: tandem.VoteNone, Choice: Plain}
	}
	if vote == tandem.VoteNone || len(ready) == 1 {
		ready, vote = ready[:1], tandem.VoteNone
	}
	out := Decision{Vote: vote, Nodes: proposal.Bounds.Nodes, Asks: make([]Ask, len(ready)), Reason: reason}
	for i, name := range ready {
		out.Asks[i] = Ask{name, proposal}
	}
	out.Choice = fmt.Sprintf("%s %d/%d", out.who(), proposal.Bounds.Nodes, proposal.Bounds.Depth)
	return out
}

// who returns the names of the drafters asked, as text.
func (d Decision) who() string {
	switch len(d.Asks) {
	case 0:
		return Plain
	case 1:
		return d.Asks[0].Drafter
	}
	return fmt.Sprintf("vote of %d", len(d.Asks))
}

// trees returns the drafts of the round, as a Mix takes them.
func (o *Outcome) trees() []spec.DrafterTree {
	out := make([]spec.DrafterTree, len(o.Drafts))
	for i, d := range o.Drafts {
		out[i] = spec.DrafterTree{Drafter: d.Drafter, Tree: d.Got.Tree}
	}
	return out
}

// compare adapts the weights of the round's drafters by how many committed tokens each had drafted.
func (o *Outcome) compare(w *learn.Weights) {
	if !o.Merged {
		return
	}
	held := make(map[string]int, len(o.Drafts))
	for _, d := range o.Drafts {
		held[d.Drafter] = spec.Held(d.Got.Tree, o.Verdict.Tokens)
	}
	w.Compare(held)
}

// weighed lists the weights of the drafters that d asks, "" unless several are asked and have weights.
func weighed(w *learn.Weights, d Decision) string {
	if w == nil || len(d.Asks) < 2 {
		return ""
	}
	now := w.Snapshot() // Of would make those known that have not drafted yet
	list := make([]string, len(d.Asks))
	for i, k := range d.Asks {
		v, known := now[k.Drafter]
		if !known {
			v = 1
		}
		list[i] = fmt.Sprintf("%s %.2f", k.Drafter, v)
	}
	return "; weights " + strings.Join(list, ", ")
}

package strategy

import (
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
)

// kinds lists the strategies as requests name them, the default first. To add one, write its type into a file of its own and a row here:
// what refuses, lists and explains names goes by this table.
var kinds = []kind{
	{tandem.StrategyPlanner, "what is expected to bring the most tokens per second", newPlanner, tandem.VoteTree, true},
	{tandem.StrategyFixed, "a tree as large as its bounds in each round", newFixed, tandem.VoteNone, false},
	{tandem.StrategyLLMCad, "branches until none is likelier than α, and on while the target verifies (Xu et al., 2023)", newLLMCad,
		tandem.VoteNone, true},
	{tandem.StrategyMinions, "chains, and a vote of their drafters (Wang et al., 2024)", newMinions, tandem.VoteMajority, true},
}

// kind is a row of kinds.
type kind struct {
	name     tandem.Strategy
	help     string // what it drafts
	create   func(o options) Strategy
	vote     tandem.Vote // if the request leaves it to the strategy; VoteNone: one drafter drafts
	inherits bool        // it begins with the drafters' weights of earlier sessions, unless its request leaves out what adapts
}

// kindOf returns the row of a name; that of StrategyFixed for "" or a name that is not there.
func kindOf(name tandem.Strategy) kind {
	at := func(name tandem.Strategy) int {
		return slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	}
	if i := at(name); i >= 0 {
		return kinds[i]
	}
	return kinds[at(tandem.StrategyFixed)]
}

// New returns the strategy of r, whose prompt has prompt tokens, and the drafters' weights that it uses and adapts. Whoever merges trees
// must use the same weights. A name that is not there means StrategyFixed.
func New(r tandem.Request, prompt int, shared *Shared) (Strategy, *learn.Weights) {
	k, shared := kindOf(r.Strategy), shared.of(&r)
	o := options{vote: r.Vote, adaptive: r.Without&tandem.TechniqueAdaptive == 0, ahead: r.Without&tandem.TechniqueAhead == 0,
		prompt: prompt, output: r.MaxTokens, shared: shared}
	if o.vote == "" || o.vote == tandem.VoteAuto {
		o.vote = k.vote
	}
	o.weights = shared.newWeights(o.adaptive && k.inherits)
	return k.create(o), o.weights
}

// Names lists the strategies, the default first, for tandem.Limits. The slice is the caller's.
func Names() (names []tandem.Strategy) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// Help returns a phrase that says what a strategy drafts; "" if there is none of that name.
func Help(name tandem.Strategy) string {
	if k := kindOf(name); k.name == name {
		return k.help
	}
	return ""
}

// AsksOne reports whether a strategy of that name exists and asks one drafter, unless a request wants a vote.
func AsksOne(name tandem.Strategy) bool {
	k := kindOf(name)
	return k.name == name && k.vote == tandem.VoteNone
}

// Package draftertest is what tests of drafters share: a pool that keeps tickets, and proposals.
package draftertest

import "github.com/tandem-llm/tandem"

// Limit is how many tokens the texts of most tests have at most.
const Limit = 160

// Bounds are those of most tests' trees.
var Bounds = tandem.Bounds{Nodes: 16, Depth: 7, Width: 10}

// Proposal asks for a tree below text, of which the drafter knows told tokens.
func Proposal(id tandem.SessionID, text []tandem.Token, told int) tandem.Proposal {
	return tandem.Proposal{Session: id, Epoch: 1, Base: tandem.Position(len(text)), Hash: tandem.EmptyPrefix.Add(text...),
		From: tandem.Position(told), Suffix: text[told:], Bounds: Bounds, SelfDrafts: []string{tandem.Medusa}}
}

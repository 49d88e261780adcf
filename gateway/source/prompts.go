package source

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/spec/shape"
)

const (
	// promptShare is the share of a tree's nodes that prompt nodes take at most.
	promptShare = 0.5
	// promptSpots is how many nodes are to get all their prompt nodes, as far as there is room.
	promptSpots = 4
)

// reserve implements prompter.
func (d *selfDraft) reserve() int {
	most := d.session.Nodes - 2 // room for a guess at least
	n := min(promptSpots*d.of.Levels*d.of.Members, int(promptShare*float64(d.session.Nodes)), most)
	return max(n/d.of.Members*d.of.Members, 0)
}

// prompt implements prompter: they are behind those of t's nodes where the accepted path will likely end.
func (d *selfDraft) prompt(t tandem.Tree, most int) tandem.Tree {
	room := min(most, d.session.Nodes-t.Len())
	var sizes []int
	for n := d.of.Members; n <= room; n = max(n+d.of.Members, n*5/4/d.of.Members*d.of.Members) {
		sizes = append(sizes, n)
	}
	if len(sizes) == 0 {
		return t
	}
	all := make([][]int8, len(sizes))
	gains := make([]float64, len(sizes))
	for i, n := range sizes {
		all[i] = shape.Allot(t, d.expected(), d.of, n)
		gains[i] = shape.Gain(t, d.expected(), all[i])
	}
	i := d.session.strategy.Prompts(d.Name(), t.Len(), sizes, gains)
	if i < 0 {
		return t
	}
	return shape.Prompt(t, all[i], d.of)
}

// refused implements prompter: the self-draft is given up.
func (d *selfDraft) refused() {
	d.Counters.Add("guesses.refused", 1)
	d.Judge(round.Suspicious)
}

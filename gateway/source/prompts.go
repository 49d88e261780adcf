package source

import (
	"slices"

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

// Reserve returns how many of a round's nodes are for prompt nodes, so that the verdict can carry guesses of PPD; 0 if it is not asked or
// there is no room for its first level.
func (s *Set) Reserve(asked []string) int {
	d := s.prompter(asked)
	if d == nil {
		return 0
	}
	most := s.session.Nodes - 2 // room for a guess at least
	n := min(promptSpots*d.of.Levels*d.of.Members, int(promptShare*float64(s.session.Nodes)), most)
	return max(n/d.of.Members*d.of.Members, 0)
}

// prompter returns the self-draft that needs prompt nodes, if it is asked.
func (s *Set) prompter(asked []string) *selfDraft {
	i := slices.IndexFunc(s.own, func(d *selfDraft) bool { return d.Name() == tandem.PPD })
	if i < 0 || !slices.Contains(asked, tandem.PPD) || s.own[i].of.Members == 0 {
		return nil
	}
	return s.own[i]
}

// Prompt returns t with at most reserve prompt nodes, behind those of its nodes where the accepted path will likely end.
func (s *Set) Prompt(t tandem.Tree, asked []string, reserve int) tandem.Tree {
	d := s.prompter(asked)
	if d == nil {
		return t
	}
	room := min(reserve, s.session.Nodes-t.Len())
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
	i := s.session.strategy.Prompts(d.Name(), t.Len(), sizes, gains)
	if i < 0 {
		return t
	}
	return shape.Prompt(t, all[i], d.of)
}

// PromptsRefused gives up the self-draft whose prompt nodes the verifier has refused.
func (s *Set) PromptsRefused(asked []string) {
	if d := s.prompter(asked); d != nil {
		s.Counters.Add("guesses.refused", 1)
		d.Judge(round.Suspicious)
	}
}

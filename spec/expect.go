package spec

import "github.com/tandem-llm/tandem"

// Expected returns how many tokens of a tree are expected to be accepted, by the chances of Plan.Accept; nil: as the draft model says.
func Expected(t tandem.Tree, accept []float32) (sum float64) {
	if t.Len() < 2 {
		return 0
	}
	for _, c := range newChances(accept).along(t.Bare())[1:] {
		sum += c
	}
	return sum
}

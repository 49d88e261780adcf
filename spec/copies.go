package spec

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Copies learns how often a text goes on as it did where its end stood before. What counts is how many tokens agree, whether they stood
// there once, several times with the same token behind them, or with different ones, and whether the longest place has been wrong already.
// Two tokens that agree by chance and a passage that has been copied for fifty tokens are thus told apart, and in a text that copies much
// short matches soon count for more than in prose. Counts are those of one text. Each cell begins with what copies are usually worth. Not
// safe for concurrent use.
type Copies struct {
	cells [2][3][len(matchClasses) + 1]copyCell
}

type copyCell struct{ seen, held float64 }

// matchClasses are the most tokens of a class of matches.
var matchClasses = [...]int32{1, 2, 3, 4, 6, 9, 14, 22, 34, 59}

// What stood behind the places of a match.
const (
	followedOnce  = iota // one place
	followedAlike        // several, all with the same token
	followedMixed        // several, with different ones
)

const (
	copyPrior  = 4    // places that the usual chance counts for
	copyMemory = 64   // places that a cell remembers, about
	copyStates = 4    // places, longest first, that one token is compared with
	copyShort  = 0.25 // usual chance of a shorter match once the longest was wrong
)

// copyOf returns the kind of places with so many different tokens behind them, which stood there that often in all.
func copyOf(tokens, times int) int {
	switch {
	case tokens > 1:
		return followedMixed
	case times > 1:
		return followedAlike
	}
	return followedOnce
}

// chance returns the probability that the text goes on as behind one of the places of a match. shorter: a longer match was wrong.
func (c *Copies) chance(shorter bool, kind int, match int32) float64 {
	usual := copyShort
	if !shorter {
		m := float64(match)
		if kind == followedMixed {
			m = (m + 2) / 2
		}
		odds := m * math.Sqrt(m) / 3 // fits the recorded texts of package gateway/strategy: .25 .49 .73 .88 .96 for 1 2 4 8 16
		usual = odds / (1 + odds)
	}
	cell := c.cell(shorter, kind, match)
	return (cell.held + copyPrior*usual) / (cell.seen + copyPrior)
}

// learn notes whether the text has gone on so.
func (c *Copies) learn(shorter bool, kind int, match int32, held bool) {
	cell := c.cell(shorter, kind, match)
	cell.seen, cell.held = cell.seen*(1-1./copyMemory)+1, cell.held*(1-1./copyMemory)
	if held {
		cell.held++
	}
}

func (c *Copies) cell(shorter bool, kind int, match int32) *copyCell {
	class, _ := slices.BinarySearch(matchClasses[:], match)
	level := 0
	if shorter {
		level = 1
	}
	return &c.cells[level][kind][class]
}

// Learn compares the token that comes next with what stood behind earlier places of the text's end. It is called for tokens that the target
// has chosen, before Append. Others say nothing of how much the target copies.
func (a *Automaton) Learn(t tandem.Token) {
	s := a.states[a.last].link
	for n := 0; s > 0 && n < copyStates; n++ {
		held := a.find(s, t) >= 0
		if a.copies.learn(n > 0, a.kind(s), a.states[s].length, held); held {
			return
		}
		s = a.states[s].link
	}
}

// kind returns the kind of a state's places.
func (a *Automaton) kind(s int32) int {
	times := 0
	for e := a.states[s].first; e >= 0; e = a.edges[e].next {
		times += int(a.edges[e].count)
	}
	return copyOf(int(a.states[s].degree), times)
}

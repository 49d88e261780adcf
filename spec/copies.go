package spec

import (
	"math"
	"math/bits"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Copies learns how likely a text repeats itself: that after a match (tokens at its end that stood in it before) the same token comes
// again. It counts by three things: the length of the match; whether it stood there once, several times with the same token behind it, or
// with different ones; and whether a longer match has been wrong. Counts are of one text, and each begins with what matches are usually
// worth. So in a text that copies much, short matches soon count for more than in prose. Not safe for concurrent use.
type Copies struct {
	cells [2][followedMixed + 1][copyClasses]copyCell
}

type copyCell struct{ seen, held float64 }

// copyClasses is how many classes of matches there are: 1 token, 2 to 3, 4 to 7 and so on.
const copyClasses = 1 << 3

// What stood behind the places of a match.
const (
	followedOnce  = iota // one place
	followedAlike        // several, all with the same token
	followedMixed        // several, with different ones
)

// copyStates is how many places, longest first, one token is compared with.
const copyStates = 1 << 2

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
	m := 1.0 // once the longest match was wrong, a shorter one counts as one of a single token
	if !shorter {
		if m = float64(match); kind == followedMixed {
			m = (m + 2) / 2
		}
	}
	odds := m * math.Sqrt(m) / worth.CopyOdds // fits the recorded texts of package gateway/strategy
	usual := odds / (1 + odds)
	cell := c.cell(shorter, kind, match)
	return (cell.held + worth.Prior*usual) / (cell.seen + worth.Prior)
}

// learn notes whether the text has gone on so.
func (c *Copies) learn(shorter bool, kind int, match int32, held bool) {
	cell := c.cell(shorter, kind, match)
	cell.seen, cell.held = cell.seen*(1-1./worth.Memory)+1, cell.held*(1-1./worth.Memory)
	if held {
		cell.held++
	}
}

func (c *Copies) cell(shorter bool, kind int, match int32) *copyCell {
	class := min(bits.Len(uint(match)), copyClasses) - 1
	level := 0
	if shorter {
		level = 1
	}
	return &c.cells[level][kind][class]
}

// Learn compares the next token of the text with the tokens that followed its end where that stood before. Call it before Append, and only
// for tokens that the target has chosen: others do not show how much the target copies.
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

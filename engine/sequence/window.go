package sequence

import "github.com/tandem-llm/tandem/kernels"

// Window says what the rows of a windowed sequence see of a long text: its first First tokens, and Last to Last+Step-1 tokens at its end.
// The row at position p sees the positions below First, and those from From(p) to p. All keys are at their positions in the text. Models
// attend to the first tokens even where these say nothing ("attention sinks", Xiao et al., 2024), so they stay. The window moves by whole
// Steps, so whole pages leave, and texts that grow a little begin alike.
//
// First and Step are multiples of kernels.PageRows; Step and Last are at least 1. The zero value: rows see the whole text.
type Window struct{ First, Last, Step int }

// From returns the first position behind First that the row at position p sees. It is First if the row sees all before it.
func (w Window) From(p int) int { return max(w.First, (p+1-w.Last)/max(w.Step, 1)*w.Step) }

// Reads returns how many tokens of a text of n tokens a sequence reads.
func (w Window) Reads(n int) int {
	if w.Last == 0 {
		return n
	}
	return n - (w.From(n-1) - w.First)
}

// Most returns the most tokens of a text that a sequence reads, however long the text is; 0: it reads all.
func (w Window) Most() int {
	if w.Last == 0 {
		return 0
	}
	return w.First + w.Last + w.Step - 1
}

// view is what a windowed sequence has beside its pages. Between its first window.First positions and the others it leaves out gap
// positions of its text: inside the sequence, positions count what it holds.
type view struct {
	window Window
	gap    int
	slid   bool // it once held some of what it leaves out
}

// valid reports whether w is as Window says, for a sequence of so many tree rows.
func (w Window) valid(nodes int) bool {
	return w.First >= 0 && w.First%kernels.PageRows == 0 && w.Step >= 1 && w.Step%kernels.PageRows == 0 && w.Last >= max(nodes, 1)
}

// inText returns the position in the text of a position of the sequence.
func (v *view) inText(at int) int {
	if at < v.window.First {
		return at
	}
	return at + v.gap
}

// within returns how many of the first n positions of the text the sequence holds, if it holds any behind them.
func (v *view) within(n int) int { return max(min(n, v.window.First), n-v.gap) }

// follow returns how many of the next n tokens that a sequence of that length reads follow each other in the text.
func (v *view) follow(length, n int) int {
	if first := v.window.First; v.gap > 0 && length < first {
		return min(n, first-length)
	}
	return n
}

// hidden returns how many positions of the sequence, behind the first ones, its row at position at does not see.
func (v *view) hidden(at int) int {
	if v.window.Last == 0 || at < v.window.First {
		return 0
	}
	return max(0, v.window.From(v.inText(at))-v.window.First-v.gap)
}

// rewound returns the position of the sequence to which a rollback to position n of the text leads, and what it then leaves out: it begins
// behind the first tokens again if the next rows see what it does not hold.
func (v *view) rewound(n int) (at, gap int) {
	if from := v.window.From(n); n < v.window.First+v.gap || v.slid && from < v.window.First+v.gap {
		return min(n, v.window.First), from - v.window.First
	}
	return v.within(n), v.gap
}

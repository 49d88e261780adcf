package engine

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Window says what the rows of a windowed sequence see of a long text: its first First tokens, and its last Last or up to Step-1 more. The
// row at position p sees the positions below First, and those from From(p) to p. All keys are at their positions in the text. Models
// attend to the first tokens even where these say nothing ("attention sinks", Xiao et al., 2024), so they stay. The window moves by whole
// Steps, so whole pages leave, and texts that grow a little begin alike.
//
// First and Step are multiples of kernels.PageRows; Step and Last are at least 1. The zero value: rows see the whole text.
type Window struct{ First, Last, Step int }

// From returns where the last part of what the row at position p sees begins; First: the row sees all before it.
func (w Window) From(p int) int { return max(w.First, (p+1-w.Last)/max(w.Step, 1)*w.Step) }

// Reads returns how many tokens a sequence reads of a text of n.
func (w Window) Reads(n int) int {
	if w.Last == 0 {
		return n
	}
	return n - (w.From(n-1) - w.First)
}

// Most returns how many tokens a sequence reads of a text at most, however long that is; 0: all.
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

// NewWindowed returns a sequence as NewShared does, with the same errors, whose rows see their text through w. It never reads what no row
// behind the prompt sees. Local layers see no less than without: w.Last is at least their window. Others share its pages only if they leave
// out the same part of the same text, and only until it gives up pages, which it does as it grows. Further errors: Invalid for a model
// with recurrent layers, for one that reads states, for a window that is not as Window says, and for more tree rows than w.Last.
func (m *Model) NewWindowed(tenant string, prompt []tandem.Token, capacity, nodes int, w Window) (*Sequence, error) {
	states, _ := m.StateWidth()
	w.Last = max(w.Last, m.config.Window)
	switch {
	case m.config.Recurrent() || states > 0:
		return nil, tandem.Errorf("engine", tandem.Invalid, "a window on the texts of %s: its layers keep more than keys and values of "+
			"tokens", m.config.Name)
	case w.First < 0 || w.First%kernels.PageRows != 0 || w.Step < 1 || w.Step%kernels.PageRows != 0 || w.Last < max(nodes, 1):
		return nil, tandem.Errorf("engine", tandem.Invalid, "a window on the first %d and the last %d positions, in steps of %d: want "+
			"multiples of %d, but any number of last ones from that of tree rows on, %d", w.First, w.Last, w.Step, kernels.PageRows, nodes)
	}
	if err := checkSequence(&m.config, capacity, nodes); err != nil {
		return nil, err
	}
	prompt = prompt[:min(len(prompt), capacity)]
	from := w.From(len(prompt) - 1)
	gap := from - w.First
	if gap > 0 {
		prompt = slices.Concat(prompt[:w.First], prompt[from:])
	}
	// to leave out another part is to be another tenant
	s, err := m.NewShared(fmt.Sprintf("%d %s", gap, tenant), prompt, capacity-gap, nodes)
	if err == nil {
		s.view = view{window: w, gap: gap}
	}
	return s, err
}

// End returns the position in the text of the token that the sequence reads next: Len, and with it what it leaves out.
func (s *Sequence) End() int { return s.inText(s.length) }

// Lacks returns how many positions the sequence must compute to hold its text up to position n.
func (s *Sequence) Lacks(n int) int { return s.within(n) - s.length }

// Follow returns how many of the next n tokens that the sequence reads follow each other in the text.
func (s *Sequence) Follow(n int) int {
	if first := s.window.First; s.gap > 0 && s.length < first {
		return min(n, first-s.length)
	}
	return n
}

// inText returns the position in the text of a position of the sequence.
func (s *Sequence) inText(at int) int {
	if at < s.window.First {
		return at
	}
	return at + s.gap
}

// within returns how many of the first n positions of the text the sequence holds, if it holds any behind them.
func (s *Sequence) within(n int) int { return max(min(n, s.window.First), n-s.gap) }

// hidden returns how many positions of the sequence, behind the first ones, its row at position at does not see.
func (s *Sequence) hidden(at int) int {
	if s.window.Last == 0 || at < s.window.First {
		return 0
	}
	return max(0, s.window.From(s.inText(at))-s.window.First-s.gap)
}

// grown lets others find what the sequence holds, and gives up what neither its next rows see nor those after a rollback by a page. If
// there is no memory to go on alone, the sequence keeps what it shares with others until there is.
func (s *Sequence) grown() {
	s.pages.Publish(s.shown(len(s.tokens)))
	n := s.hidden(max(s.length-1-kernels.PageRows, 0))
	if n == 0 || s.pages.Leave(s.window.First/kernels.PageRows, n/kernels.PageRows) != nil {
		return
	}
	s.tokens = slices.Delete(s.tokens, s.window.First, s.window.First+n)
	s.length, s.capacity, s.gap, s.slid, s.prompt = s.length-n, s.capacity-n, s.gap+n, true, nil
}

// rewound returns the position of the sequence to which a rollback to position n of the text leads, and what it then leaves out: it begins
// behind the first tokens again if the next rows see what it does not hold.
func (s *Sequence) rewound(n int) (at, gap int) {
	if from := s.window.From(n); n < s.window.First+s.gap || s.slid && from < s.window.First+s.gap {
		return min(n, s.window.First), from - s.window.First
	}
	return s.within(n), s.gap
}

// leaveOut makes gap what the sequence, which holds no more than its first positions, leaves out.
func (s *Sequence) leaveOut(gap int) {
	if gap != s.gap {
		s.pages.Private()
		s.capacity, s.gap, s.slid, s.prompt = s.capacity+s.gap-gap, gap, false, nil
	}
}

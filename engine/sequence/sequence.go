package sequence

import (
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/kernels"
)

// Sequence is one session's state in a Cache: a committed prefix and, after it, the rows of a token tree that a pass has computed and that
// are not accepted yet. It belongs to the owner of its Cache and is not safe for concurrent use.
type Sequence struct {
	memory   kernels.Cache // of its pages
	pages    *kv.Pages
	open     map[*Sequence]bool // of its cache: those that are not closed
	capacity int                // committed positions allowed
	maxNodes int
	length   int            // committed positions held
	tokens   []tandem.Token // of those positions
	prompt   []tandem.Token // of a shared sequence: what Resume looks for
	born     int            // of a shared sequence: how many were made before it
	withheld bool           // others find only the first public positions
	public   int
	inPass   bool // guards against one sequence twice in a batch
	tree
	recurrence
	view
}

// Close frees the sequence's memory. The pages of a shared sequence are kept for later ones until the memory is needed.
// Closing twice is harmless.
func (s *Sequence) Close() {
	s.dropTree()
	s.pages.Keep(s.shown(s.stated()))
	s.begin(0)
	delete(s.open, s)
	s.length, s.capacity, s.maxNodes = 0, 0, 0
	s.tokens, s.prompt = nil, nil
}

// Len returns the number of committed positions in the cache. See End for those of a windowed sequence.
func (s *Sequence) Len() int { return s.length }

// Capacity returns the position of the text up to which the sequence may commit tokens.
func (s *Sequence) Capacity() int { return s.capacity + s.gap }

// Pages returns how many pages of the KV cache the sequence has, those that it shares included.
func (s *Sequence) Pages() int { return s.pages.Count() }

// Nodes returns the number of tree rows held.
func (s *Sequence) Nodes() int { return len(s.parents) }

// Tokens returns the committed tokens that the sequence holds. They are the sequence's: do not change them.
func (s *Sequence) Tokens() []tandem.Token { return s.tokens }

// Cell returns the cell of tree row n. final says that it is the cell of the row's position, so that nothing moves if the row is accepted.
func (s *Sequence) Cell(n int32) (cell kernels.Cell, final bool) {
	p := s.places[n]
	return p.cell, p.node < 0
}

// End returns the position in the text of the token that the sequence reads next: Len and the number of tokens that it leaves out.
func (s *Sequence) End() int { return s.inText(s.length) }

// Lacks returns how many more positions the sequence must compute to hold its text up to position n; below 0 if it holds more.
func (s *Sequence) Lacks(n int) int { return s.within(n) - s.length }

// Follow returns how many of the next n tokens that the sequence reads are neighbours in the text. They are fewer than n for a windowed
// sequence that has not read all of the first tokens: behind these it goes on after a gap.
func (s *Sequence) Follow(n int) int { return s.follow(s.length, n) }

func (s *Sequence) dropTree() {
	s.recurrence.dropNodes()
	s.tree.clear()
}

// Commit makes the tree rows in path the positions Len, Len+1 …: the first is a child of the prefix, each the
// parent of the next, none a prompt row. All other tree rows are dropped. On error nothing changes.
func (s *Sequence) Commit(path []int32) error { return s.Reroot(path, nil) }

// Reroot commits path as Commit does, but the tree rows in keep stay. keep is ascending; each of its rows has its
// parent in keep or is a child of the new end of the prefix; prompt rows cannot be kept. The kept rows become rows
// 0, 1 … in that order; every other row is dropped. Positions do not change, so later passes compute the same bits
// below the kept rows as if all had been computed anew. On error nothing changes.
func (s *Sequence) Reroot(path, keep []int32) error {
	if s.length+len(path) > s.capacity {
		return tandem.Errorf("engine", tandem.Invalid, "commit of %d rows at position %d: the sequence holds %d", len(path), s.length,
			s.capacity)
	}
	root, err := s.checkPath(path)
	if err != nil {
		return err
	}
	parents, err := s.parentsOf(keep, root)
	if err != nil {
		return err
	}
	for _, n := range path {
		s.tokens = append(s.tokens, s.rows[n])
	}
	line := s.line[:0]
	if s.settle(path, s.length, s.pages) { // path lay on the line, which goes on; else the line ends: its rows are overwritten or dropped
		line = s.lineBehind(len(path), keep)
	}
	s.tree.keep(keep, parents, line)
	s.length += len(path)
	s.recurrence.reroot(path, keep)
	s.grown()
	return nil
}

// Truncate rolls back to the first n positions of the text and drops all tree rows. On error nothing changes. Errors: Invalid if n is not
// in the text that it holds; Unavailable if its states are lost; Exhausted, only if a shared sequence is rolled back into its prompt or by
// more than one position, because pages that others share must be replaced.
//
// With recurrent layers n may be a position whose states are not kept. Then the sequence is rolled back further, to the last position
// before n that has some: Len says to which. The caller extends it again, as after NewShared. Likewise a windowed sequence is rolled back
// to the end of the first tokens if it has given up what rows behind n see: End says to which.
func (s *Sequence) Truncate(n int) error {
	if n < 0 || n > s.End() {
		return tandem.Errorf("engine", tandem.Invalid, "truncate to %d positions: the sequence holds %d", n, s.End())
	}
	n, gap := s.rewound(n)
	n, err := s.rewind(n)
	if err != nil {
		return err
	}
	if gap != s.gap {
		s.leaveOut(gap)
	}
	s.length, s.tokens = n, s.tokens[:n]
	s.dropTree()
	return nil
}

// rewind gives up the positions from n on, and as many before as have no states; it returns how many are left.
func (s *Sequence) rewind(n int) (int, error) {
	switch {
	case !s.recurrent():
		return n, s.pages.Truncate(n)
	case s.broken:
		return 0, errBroken()
	case n >= s.at:
		err := s.pages.Truncate(n)
		if err == nil {
			s.pages.Unmark(n)
			s.dropPending(n - s.at)
		}
		return n, err
	}
	n, err := s.pages.Rewind(n)
	if err == nil {
		s.begin(n)
	}
	return n, err
}

func errBroken() error {
	return tandem.Errorf("engine", tandem.Unavailable, "the sequence's states are lost, since a pass failed: open it again")
}

// stated returns up to which position the slot has the states, or, of a model without, all positions.
func (s *Sequence) stated() int {
	switch {
	case s.broken:
		return 0
	case s.recurrent():
		return s.at
	}
	return s.length
}

// shown returns those of the first n tokens that others may find.
func (s *Sequence) shown(n int) []tandem.Token {
	if s.withheld {
		n = min(n, s.public)
	}
	return s.tokens[:n]
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

// leaveOut makes gap what the sequence, which holds no more than its first positions, leaves out.
func (s *Sequence) leaveOut(gap int) {
	s.pages.Private()
	s.capacity, s.gap, s.slid, s.prompt = s.capacity+s.gap-gap, gap, false, nil
}

// Where a sequence keeps states of its prompt for others.
const (
	leastApart = 8 // pages between states that divide a prompt
	mostParts  = 8 // of a prompt between them
)

// nextMark returns the first position behind at where s will keep states of its prompt for others; 0: none. They are kept at the last end
// of a page of the prompt; at the end of the last page that the prompt shares with an earlier text whose states there were not kept; and
// where they only divide a long prompt, so that not all is computed again of the first that differs in its middle.
func (s *Sequence) nextMark(at int) int {
	end := len(s.prompt) / kernels.PageRows * kernels.PageRows
	if end <= at {
		return 0
	}
	apart := leastApart * kernels.PageRows
	for apart*mostParts < end {
		apart *= 2 // so that prompts of other lengths are divided at the same places
	}
	next := min(end, (at/apart+1)*apart)
	if p := s.pages.Parted(); p > at && p < next {
		return p
	}
	return next
}

// Distrust makes sure that no sequence finds the pages of s any more. It is for a failure that they may have caused. Sequences that share
// them already go on.
func (s *Sequence) Distrust() { s.pages.Distrust() }

// Seen implements guess.Sequence.
func (s *Sequence) Seen(path []int32) (guess.Seen, error) {
	if s == nil {
		return guess.Seen{}, nil
	}
	if s.length+len(path) == 0 {
		return guess.Seen{}, tandem.Errorf("engine", tandem.Invalid, "a guess by %s behind an empty prefix", tandem.Assistant)
	}
	out, above := guess.Seen{Cache: s.memory, Prefix: s.length, Pages: s.pages.Table}, int32(-1)
	for i, n := range path {
		if n < 0 || int(n) >= len(s.parents) || s.parents[n] != above || s.rows[n] < 0 {
			return guess.Seen{}, tandem.Errorf("engine", tandem.Invalid,
				"a guess by %s behind tree rows %v: entry %d is not a child of the one before", tandem.Assistant, path, i)
		}
		out.Path, above = append(out.Path, s.places[n].cell), n
	}
	return out, nil
}

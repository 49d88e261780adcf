package sequence

import (
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/kernels"
)

// Want says which rows of a part get logits.
type Want uint8

const (
	WantNone Want = iota // none
	WantTail             // the last Extend row, if any, and every node with a token
	WantAll              // every row with a token
)

// Part is one sequence's share of a pass: the rows that the pass adds to it. Callers fill in the fields. Package pass then calls Check and
// Enter, lays the rows out (Table, At, Cell, Ancestors) and the walks over states (Walks), and runs the pass; after that Commit or Fail,
// and always Leave.
type Part struct {
	Seq     *Sequence
	Extend  []tandem.Token // appended to the committed prefix, causally; not while tree rows are held
	Nodes   []tandem.Token // tree rows, numbered Seq.Nodes(), Seq.Nodes()+1 …; -1-e: prompt row e, with that embedding of the ppd file
	Parents []int32        // per node: a tree row of Seq with a smaller number, or -1 for the end of the prefix
	States  []guess.State  // per row, Extend rows and then Nodes; for drafts with states, else nil
	Want    Want
	// Chain says that the last so many Nodes get their tokens in the pass: each the best one of its parent, the row before it. The first is
	// a child of the last of the other Nodes or, without any, of the last Extend row. Nodes has any tokens for them, which Forward sets,
	// but no prompt rows, and they have no States. Only for models with chains (pass.Runner.Chains).
	Chain int

	places []place // of Nodes
	depths []int32 // of Nodes
	line   []int32 // the sequence's line, extended by some of Nodes
	walk   walk    // of recurrent layers
}

// Check returns an error unless the part can be in a pass over sequences of c: its sequence must be one of c's, with room for its rows,
// and its Parents must make a tree. Errors: Invalid, and Unavailable if the sequence has lost its states.
func (part *Part) Check(c *Cache) error {
	const op = "engine"
	s := part.Seq
	switch {
	case s == nil || s.memory != c.memory:
		return tandem.Errorf(op, tandem.Invalid, "part with another model's sequence")
	case s.broken:
		return errBroken()
	case s.inPass:
		return tandem.Errorf(op, tandem.Invalid, "one sequence twice in a pass")
	case s.length+len(part.Extend) > s.capacity:
		return tandem.Errorf(op, tandem.Invalid, "%d more positions after %d: the sequence holds %d",
			len(part.Extend), s.length, s.capacity)
	case len(s.parents)+len(part.Nodes) > s.maxNodes:
		return tandem.Errorf(op, tandem.Invalid, "%d more tree rows after %d: the sequence holds %d",
			len(part.Nodes), len(s.parents), s.maxNodes)
	case len(part.Extend) > 0 && len(s.parents) > 0:
		return tandem.Errorf(op, tandem.Invalid, "prefix extended under %d tree rows: commit or truncate first", len(s.parents))
	case len(part.Parents) != len(part.Nodes):
		return tandem.Errorf(op, tandem.Invalid, "%d tree rows but %d parents", len(part.Nodes), len(part.Parents))
	case s.length+len(part.Extend) == 0 && len(part.Nodes) > 0:
		return tandem.Errorf(op, tandem.Invalid, "tree rows below an empty prefix")
	}
	if err := part.checkChain(); err != nil {
		return err
	}
	for i, parent := range part.Parents {
		prompt := part.Nodes[i] < 0
		if parent < -1 || int(parent) >= len(s.parents)+i {
			return tandem.Errorf(op, tandem.Invalid, "tree row %d has parent %d: want -1 to %d", len(s.parents)+i, parent,
				len(s.parents)+i-1)
		}
		if parent >= 0 && !prompt && part.token(parent) < 0 {
			return tandem.Errorf(op, tandem.Invalid, "tree row %d has token %d below prompt row %d: want it below tokens",
				len(s.parents)+i, part.Nodes[i], parent)
		}
	}
	return nil
}

// checkChain refuses a chain that does not follow a wanted row of the part, or of which a row does not follow the one before.
func (part *Part) checkChain() error {
	n, old := len(part.Nodes)-part.Chain, int32(len(part.Seq.parents))
	last := max(0, n-1) // with the row that it follows
	prompt := part.Chain > 0 && n >= 0 && slices.Min(part.Nodes[last:]) < 0
	if part.Chain < 0 || n < 0 || part.Chain > 0 && (part.Want == WantNone || n == 0 && len(part.Extend) == 0) || prompt {
		return tandem.Errorf("engine", tandem.Invalid, "a chain of %d tree rows of %d, behind %d rows of text: want one behind a row with "+
			"logits", part.Chain, len(part.Nodes), len(part.Extend))
	}
	for i, parent := range part.Parents[n:] {
		if want := old + int32(n+i) - 1; parent != want {
			return tandem.Errorf("engine", tandem.Invalid, "row %d of a chain has parent %d: want %d, the row before", i, parent, want)
		}
	}
	return nil
}

// Settle takes the pages that a pass with the part writes to, and those that Commit and Reroot may then need, so that none of them can
// fail for lack of memory. It chooses a cell for each tree row of the part: a row that continues the line goes to the next position, any
// other to a free node cell. Callers name the likeliest children first, so that the rows accepted most often need no copy. A prompt row
// never gets a position, because it is in no path. Errors: Exhausted if too few pages are free.
func (part *Part) Settle() error {
	s, end := part.Seq, part.Seq.length+len(part.Extend)
	part.line, part.places, part.depths = append(part.line[:0], s.line...), part.places[:0], part.depths[:0]
	node, deepest := 0, int32(len(s.line))
	for i, parent := range part.Parents {
		depth := part.depth(parent) + 1
		if part.depths = append(part.depths, depth); part.Nodes[i] >= 0 {
			deepest = max(deepest, depth)
		}
		tip := int32(-1)
		if n := len(part.line); n > 0 {
			tip = part.line[n-1]
		}
		if parent == tip && end+len(part.line) < s.capacity && part.Nodes[i] >= 0 {
			part.line, part.places = append(part.line, int32(len(s.parents)+i)), append(part.places, place{node: -1})
			continue
		}
		for s.taken[node] {
			node++
		}
		part.places = append(part.places, place{node: node})
		node++
	}
	if err := s.pages.Grow(min(end+int(deepest), s.capacity), node); err != nil {
		return err
	}
	at := end + len(s.line)
	for i := range part.places {
		if p := &part.places[i]; p.node >= 0 {
			p.cell = s.pages.Node(p.node)
		} else {
			p.cell = s.pages.At(at)
			at++
		}
	}
	return nil
}

// depth returns how far below the prefix tree row n lies, one that the sequence holds or one of part: 1 for a child of the prefix, 0 for
// -1.
func (part *Part) depth(n int32) (d int32) {
	old := int32(len(part.Seq.parents))
	if n >= old {
		return part.depths[n-old]
	}
	for ; n >= 0; d++ {
		n = part.Seq.parents[n]
	}
	return d
}

// token returns the token of tree row n, one that the sequence holds or of the part.
func (part *Part) token(n int32) tandem.Token {
	if old := len(part.Seq.rows); int(n) >= old {
		return part.Nodes[int(n)-old]
	}
	return part.Seq.rows[n]
}

// Enter settles the part and keeps its sequence out of other parts until Leave. Errors: Exhausted if too few pages are free.
func (part *Part) Enter() error {
	if err := part.Settle(); err != nil {
		return err
	}
	part.Seq.inPass = true
	return nil
}

// Leave ends the part's share of a pass, whatever has become of the pass. It is harmless if the part never entered.
func (part *Part) Leave() {
	if part.Seq != nil {
		part.Seq.inPass = false
	}
}

// Prefix returns how many committed positions the sequence has once the part's Extend rows are among them.
func (part *Part) Prefix() int { return part.Seq.length + len(part.Extend) }

// Table returns the pages of the sequence, in the order of positions. They are the sequence's: do not change them.
func (part *Part) Table() []int32 { return part.Seq.pages.Table }

// At returns the cell of position pos.
func (part *Part) At(pos int) kernels.Cell { return part.Seq.pages.At(pos) }

// InText returns where position pos of the sequence is in its text: further on if a windowed sequence leaves out a part before it.
func (part *Part) InText(pos int) int { return part.Seq.inText(pos) }

// Hidden returns which positions of the sequence its row at position pos does not see: n of them, from first on.
func (part *Part) Hidden(pos int) (first, n int) { return part.Seq.window.First, part.Seq.hidden(pos) }

// Cell returns the cell of Nodes[i], once the part is settled.
func (part *Part) Cell(i int) kernels.Cell { return part.places[i].cell }

// Ancestors appends to cells that of Nodes[i] and those of the tree rows above it, nearest first. The part must be settled.
func (part *Part) Ancestors(i int, cells []kernels.Cell) []kernels.Cell {
	s, old := part.Seq, len(part.Seq.parents)
	cells = append(cells, part.places[i].cell)
	for n := part.Parents[i]; n >= 0; {
		if i := int(n) - old; i >= 0 {
			cells, n = append(cells, part.places[i].cell), part.Parents[i]
		} else {
			cells, n = append(cells, s.places[n].cell), s.parents[n]
		}
	}
	return cells
}

// Commit adds the rows that a pass has computed to the sequence: Extend to its prefix, Nodes to its tree.
func (part *Part) Commit() {
	s := part.Seq
	s.length, s.tokens = s.length+len(part.Extend), append(s.tokens, part.Extend...)
	s.add(part.Parents, part.Nodes, part.places, part.line)
	if len(part.Extend)+len(part.Nodes) > 0 {
		s.walked(&part.walk)
	}
	s.grown()
}

// Fail says that a pass with the part has begun and failed. From then on others do not find the pages of its sequence; if the model has
// recurrent layers, the sequence can only be closed.
func (part *Part) Fail() {
	part.Seq.Distrust()
	part.Seq.broken = part.Seq.recurrent()
}

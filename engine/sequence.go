package engine

import (
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/kernels"
)

// Sequence is one session's state in the KV cache of a Model: a committed prefix and, after it, the
// rows of a token tree that a pass has computed and that are not accepted yet. It belongs to the owner
// of its Model and is not safe for concurrent use.
type Sequence struct {
	model    *Model
	pages    *kv.Pages
	capacity int // committed positions allowed
	maxNodes int
	length   int            // committed positions held
	tokens   []tandem.Token // of those positions
	prompt   []tandem.Token // of a shared sequence: what Resume looks for
	born     int            // of a shared sequence: how many were made before it
	parents  []int32        // of tree rows; -1 is the prefix
	rows     []tandem.Token // of tree rows
	places   []place        // of tree rows
	line     []int32        // tree rows that lie at Len, Len+1 …: the first a child of the prefix, each the parent of the next
	taken    []bool         // (maxNodes) node cells in use by tree rows
	withheld bool           // others find only the first public positions
	public   int
	inPass   bool // guards against one sequence twice in a batch
	recurrence
	view
}

// place is where a tree row lies: in a node cell or, with node -1, at its final position.
type place struct {
	cell kernels.Cell
	node int
}

// NewSequence reserves KV memory for capacity committed positions and nodes tree rows. Errors:
// Exhausted when the cache has too few free pages, Invalid when the model cannot hold so many.
func (m *Model) NewSequence(capacity, nodes int) (*Sequence, error) {
	if err := checkSequence(&m.config, capacity, nodes); err != nil {
		return nil, err
	}
	pages, err := m.cache.Reserve(capacity, nodes)
	if err != nil {
		return nil, err
	}
	s := &Sequence{model: m, pages: pages, capacity: capacity, maxNodes: nodes, taken: make([]bool, nodes)}
	m.records.enter(s)
	return s, nil
}

// NewShared returns a sequence as NewSequence does, with the same errors, that will hold prompt and shares
// memory with the other shared sequences of its tenant, also closed ones. It begins with as much of the prompt as
// they have computed (Len), and later sequences find what it computes. Results are the same, bit for bit, as without
// sharing. Tenants share nothing with each other; within a tenant the time that a prompt takes shows whether an earlier
// one began alike.
//
// Memory is reserved for the prompt and one position more; what the sequence needs later it gets when a pass needs it (Reserve).
func (m *Model) NewShared(tenant string, prompt []tandem.Token, capacity, nodes int) (*Sequence, error) {
	if err := checkSequence(&m.config, capacity, nodes); err != nil {
		return nil, err
	}
	prompt = prompt[:min(len(prompt), capacity)]
	pages, found, err := m.cache.ReserveShared(tenant, prompt, min(len(prompt)+1, capacity), 0)
	if err != nil {
		return nil, err
	}
	m.shared++
	s := &Sequence{model: m, pages: pages, born: m.shared, capacity: capacity, maxNodes: nodes, taken: make([]bool, nodes), length: found,
		tokens: slices.Clone(prompt[:found]), prompt: slices.Clone(prompt)}
	s.at = found
	m.records.enter(s)
	return s, nil
}

func checkSequence(c *blocks.Config, capacity, nodes int) error {
	const op = "engine"
	if capacity < 1 || capacity > c.Context {
		return tandem.Errorf(op, tandem.Invalid, "a sequence of %d positions: %s has a context of %d", capacity, c.Name,
			c.Context)
	}
	if nodes < 0 {
		return tandem.Errorf(op, tandem.Invalid, "a sequence with %d tree rows: want 0 or more", nodes)
	}
	return nil
}

// Close frees the sequence's memory. The pages of a shared sequence are kept for later ones until the memory is needed.
// Closing twice is harmless.
func (s *Sequence) Close() {
	s.dropNodes()
	s.pages.Keep(s.shown(s.stated()))
	s.leave()
	s.length, s.capacity, s.maxNodes = 0, 0, 0
	s.tokens, s.prompt = nil, nil
}

// Len returns the number of committed positions in the cache. See End for those of a windowed sequence.
func (s *Sequence) Len() int { return s.length }

// Capacity returns the number of committed positions that the sequence may hold.
func (s *Sequence) Capacity() int { return s.capacity + s.gap }

// Pages returns how many pages of the KV cache the sequence has, those that it shares included.
func (s *Sequence) Pages() int { return s.pages.Count() }

// Nodes returns the number of tree rows held.
func (s *Sequence) Nodes() int { return len(s.parents) }

func (s *Sequence) dropNodes() {
	s.drop(&s.ofNodes, 0)
	s.parents, s.rows, s.places, s.line = s.parents[:0], s.rows[:0], s.places[:0], s.line[:0]
	clear(s.taken)
}

// Commit makes the tree rows in path the positions Len, Len+1 …: the first is a child of the prefix, each the
// parent of the next, none a prompt row. All other tree rows are dropped. On error nothing changes.
func (s *Sequence) Commit(path []int32) error { return s.Reroot(path, nil) }

// Reroot commits path as Commit does, but the tree rows in keep stay. keep is ascending; each of its rows has its
// parent in keep or is a child of the new end of the prefix; prompt rows cannot be kept. The kept rows become rows
// 0, 1 … in that order; every other row is dropped. Positions do not change, so later passes compute the same bits
// below the kept rows as if all had been computed anew. On error nothing changes.
func (s *Sequence) Reroot(path, keep []int32) error {
	const op = "engine"
	if s.length+len(path) > s.capacity {
		return tandem.Errorf(op, tandem.Invalid, "commit of %d rows at position %d: the sequence holds %d", len(path), s.length, s.capacity)
	}
	root := int32(-1)
	for i, n := range path {
		if n < 0 || int(n) >= len(s.parents) || s.parents[n] != root {
			return tandem.Errorf(op, tandem.Invalid, "commit path %v: entry %d is not a child of the one before", path, i)
		}
		if s.rows[n] < 0 {
			return tandem.Errorf(op, tandem.Invalid, "commit path %v: entry %d is a prompt row", path, i)
		}
		root = n
	}
	parents, rows := make([]int32, len(keep)), make([]tandem.Token, len(keep))
	for i, n := range keep {
		switch {
		case n < 0 || int(n) >= len(s.parents) || i > 0 && n <= keep[i-1]:
			return tandem.Errorf(op, tandem.Invalid, "rows %v to keep: entry %d is not one of the %d rows, ascending", keep, i,
				len(s.parents))
		case s.rows[n] < 0:
			return tandem.Errorf(op, tandem.Invalid, "rows %v to keep: entry %d is a prompt row", keep, i)
		case s.parents[n] == root:
			parents[i] = -1
		default:
			at, ok := slices.BinarySearch(keep[:i], s.parents[n])
			if !ok {
				return tandem.Errorf(op, tandem.Invalid,
					"rows %v to keep: entry %d has row %d as parent, which is neither kept nor the new end of the prefix", keep, i,
					s.parents[n])
			}
			parents[i] = int32(at)
		}
	}
	var dst, src []kernels.Cell
	for i, n := range path {
		if at := s.pages.At(s.length + i); at != s.places[n].cell {
			dst, src = append(dst, at), append(src, s.places[n].cell)
		}
		s.tokens = append(s.tokens, s.rows[n])
	}
	s.pages.Copy(dst, src)
	line, places := s.line[:0], make([]place, len(keep))
	if len(dst) == 0 { // path lay on the line, which goes on; else the line ends: its rows are overwritten or dropped
		for _, n := range s.line[min(len(path), len(s.line)):] {
			if at, ok := slices.BinarySearch(keep, n); ok {
				line = append(line, int32(at))
			}
		}
	}
	clear(s.taken)
	for i, n := range keep {
		rows[i], places[i] = s.rows[n], s.places[n]
		if node := places[i].node; node >= 0 {
			s.taken[node] = true
		}
	}
	s.parents, s.rows, s.places, s.line = append(s.parents[:0], parents...), append(s.rows[:0], rows...), append(s.places[:0], places...),
		line
	s.length += len(path)
	s.rerootStates(path, keep)
	s.grown()
	return nil
}

// Truncate rolls back to the first n committed positions and drops all tree rows. Exhausted is possible if a shared sequence
// is rolled back into its prompt or by more than one position, because pages that others share must be replaced. On error
// nothing changes.
//
// With recurrent layers n may be a position whose states are not kept. Then the sequence is rolled back further, to the last before it that
// has some: Len says to which. The caller extends it again, as after NewShared. Likewise a windowed sequence is rolled back to the end of
// the first tokens if it has given up what rows behind n see; n is a position in the text, and End says to which.
func (s *Sequence) Truncate(n int) error {
	if n < 0 || n > s.End() {
		return tandem.Errorf("engine", tandem.Invalid, "truncate to %d positions: the sequence holds %d", n, s.End())
	}
	n, gap := s.rewound(n)
	n, err := s.rewind(n)
	if err != nil {
		return err
	}
	s.leaveOut(gap)
	s.length, s.tokens = n, s.tokens[:n]
	s.dropNodes()
	return nil
}

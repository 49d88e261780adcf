package sequence

import (
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/kernels"
)

// tree is the rows of a token tree that a sequence holds behind its prefix, numbered from 0 in the order in which they were computed.
type tree struct {
	parents []int32        // -1 is the end of the prefix
	rows    []tandem.Token // below 0: a prompt row
	places  []place
	line    []int32 // rows that lie at Len, Len+1 …: the first a child of the prefix, each the parent of the next
	taken   []bool  // (most rows) node cells in use
}

// place is where a tree row lies: in a node cell or, with node -1, at its final position.
type place struct {
	cell kernels.Cell
	node int
}

// clear drops all rows.
func (t *tree) clear() {
	t.parents, t.rows, t.places, t.line = t.parents[:0], t.rows[:0], t.places[:0], t.line[:0]
	clear(t.taken)
}

// checkPath returns the last row of a path down from the prefix; -1: the path is empty. Errors: Invalid for one that is none, or that has
// a prompt row.
func (t *tree) checkPath(path []int32) (end int32, err error) {
	end = -1
	for i, n := range path {
		if n < 0 || int(n) >= len(t.parents) || t.parents[n] != end {
			return end, tandem.Errorf("engine", tandem.Invalid, "commit path %v: entry %d is not a child of the one before", path, i)
		}
		if t.rows[n] < 0 {
			return end, tandem.Errorf("engine", tandem.Invalid, "commit path %v: entry %d is a prompt row", path, i)
		}
		end = n
	}
	return end, nil
}

// parentsOf returns the parents of the rows in keep once root is the end of the prefix and they are all that is left. Errors: Invalid if
// keep does not ascend, has a prompt row, or leaves out a parent.
func (t *tree) parentsOf(keep []int32, root int32) ([]int32, error) {
	const op = "engine"
	parents := make([]int32, len(keep))
	for i, n := range keep {
		switch {
		case n < 0 || int(n) >= len(t.parents) || i > 0 && n <= keep[i-1]:
			return nil, tandem.Errorf(op, tandem.Invalid, "rows %v to keep: entry %d is not one of the %d rows, ascending", keep, i,
				len(t.parents))
		case t.rows[n] < 0:
			return nil, tandem.Errorf(op, tandem.Invalid, "rows %v to keep: entry %d is a prompt row", keep, i)
		case t.parents[n] == root:
			parents[i] = -1
		default:
			at, ok := slices.BinarySearch(keep[:i], t.parents[n])
			if !ok {
				return nil, tandem.Errorf(op, tandem.Invalid,
					"rows %v to keep: entry %d has row %d as parent, which is neither kept nor the new end of the prefix", keep, i,
					t.parents[n])
			}
			parents[i] = int32(at)
		}
	}
	return parents, nil
}

// settle moves the rows of path to the cells of the positions from at on. It reports whether they were there already, all of them.
func (t *tree) settle(path []int32, at int, pages *kv.Pages) bool {
	var dst, src []kernels.Cell
	for i, n := range path {
		if to := pages.At(at + i); to != t.places[n].cell {
			dst, src = append(dst, to), append(src, t.places[n].cell)
		}
	}
	pages.Copy(dst, src)
	return len(dst) == 0
}

// keep drops all rows but those of keep, which have these parents then. line is what of them lies at the positions behind the prefix.
func (t *tree) keep(keep, parents, line []int32) {
	rows, places := make([]tandem.Token, len(keep)), make([]place, len(keep))
	clear(t.taken)
	for i, n := range keep {
		rows[i], places[i] = t.rows[n], t.places[n]
		if node := places[i].node; node >= 0 {
			t.taken[node] = true
		}
	}
	t.parents, t.rows, t.places = append(t.parents[:0], parents...), append(t.rows[:0], rows...), append(t.places[:0], places...)
	t.line = line
}

// lineBehind returns those rows of the line behind its first n that are in keep, by their places in keep.
func (t *tree) lineBehind(n int, keep []int32) []int32 {
	line := t.line[:0]
	for _, n := range t.line[min(n, len(t.line)):] {
		if at, ok := slices.BinarySearch(keep, n); ok {
			line = append(line, int32(at))
		}
	}
	return line
}

// add holds further rows, which lie at these places, on this line.
func (t *tree) add(parents []int32, rows []tandem.Token, places []place, line []int32) {
	t.parents, t.rows, t.places = append(t.parents, parents...), append(t.rows, rows...), append(t.places, places...)
	t.line = append(t.line[:0], line...)
	for _, p := range places {
		if p.node >= 0 {
			t.taken[p.node] = true
		}
	}
}

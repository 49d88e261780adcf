package sequence

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// Consistent checks where the tree rows of s lie: each in a cell of its own, those of the line at their final positions, the others in
// node cells that are marked as taken. It returns the first that is wrong. Tests call it.
func (s *Sequence) Consistent() error {
	seen, taken := map[kernels.Cell]bool{}, make([]bool, s.maxNodes)
	for row, p := range s.places {
		switch at := slices.Index(s.line, int32(row)); {
		case seen[p.cell]:
			return fmt.Errorf("cell %d of row %d is another row's too", p.cell, row)
		case at < 0 && (p.node < 0 || p.cell != s.pages.Node(p.node)), at >= 0 && (p.node >= 0 || p.cell != s.pages.At(s.length+at)):
			return fmt.Errorf("row %d, %d on the line %v from position %d, lies in %+v", row, at, s.line, s.length, p)
		case at == 0 && s.parents[row] != -1, at > 0 && s.parents[row] != s.line[at-1]:
			return fmt.Errorf("row %d, %d on the line %v, has parent %d", row, at, s.line, s.parents[row])
		}
		if seen[p.cell] = true; p.node >= 0 {
			taken[p.node] = true
		}
	}
	if len(s.places) != len(s.parents) || !slices.Equal(taken, s.taken) {
		return fmt.Errorf("%d places of %d rows, node cells taken %v: want %v", len(s.places), len(s.parents), s.taken, taken)
	}
	return nil
}

// Consistent checks that each record of recurrent layers is free or in one place of one sequence; the error says which is not. Tests call
// it.
func (c *Cache) Consistent() error {
	seen := make([]int, c.sizes.Records(c.config))
	for _, x := range c.records.free {
		seen[x]++
	}
	for s := range c.open {
		if len(s.ofNodes) != len(s.parents) || s.at+len(s.pending) != s.length {
			return fmt.Errorf("%d records of %d tree rows; states of %d positions and %d pending, of %d", len(s.ofNodes), len(s.parents),
				s.at, len(s.pending), s.length)
		}
		for _, x := range slices.Concat(s.ofNodes, s.pending) {
			seen[x]++
		}
	}
	for x, n := range seen {
		if n != 1 {
			return fmt.Errorf("record %d is in %d places", x, n)
		}
	}
	return nil
}

package verifier

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestCut: of a tree that is deeper or has more nodes than a session has room for, what is left is a tree of the first nodes, and prompt
// nodes below nodes that are left out are left out too.
func TestCut(t *testing.T) {
	//     0
	//   1   2      and prompt nodes below 3 (5) and below 1 (6)
	//   3   4
	tree := tandem.Tree{Tokens: []tandem.Token{9, 1, 2, 3, 4, 0, 0}, Parents: []int32{-1, 0, 0, 1, 2, 3, 1}, Prompts: 2}
	for _, c := range []struct {
		deepest, most int
		nodes         []int32
		parents       []int32
		prompts       int
	}{
		{9, 9, []int32{0, 1, 2, 3, 4, 5, 6}, []int32{-1, 0, 0, 1, 2, 3, 1}, 2},
		{2, 9, []int32{0, 1, 2, 3, 4, 6}, []int32{-1, 0, 0, 1, 2, 1}, 1},
		{9, 4, []int32{0, 1, 2, 3, 5, 6}, []int32{-1, 0, 0, 1, 3, 1}, 2},
		{9, 2, []int32{0, 1, 6}, []int32{-1, 0, 1}, 1},
		{1, 3, []int32{0, 1, 2}, []int32{-1, 0, 0}, 0},
		{9, 1, []int32{0}, []int32{-1}, 0},
	} {
		x := &check{}
		x.cut(tree, c.deepest, c.most)
		if !slices.Equal(x.nodes, c.nodes) || !slices.Equal(x.tree.Parents, c.parents) || x.tree.Prompts != c.prompts {
			t.Errorf("depth %d, %d nodes: nodes %v, parents %v, %d prompts: want %v, %v, %d", c.deepest, c.most, x.nodes, x.tree.Parents,
				x.tree.Prompts, c.nodes, c.parents, c.prompts)
		}
		if err := x.tree.Validate(9, 10); err != nil {
			t.Errorf("depth %d, %d nodes: %v", c.deepest, c.most, err)
		}
	}
}

//go:build brokenaccept

package spec

import "github.com/tandem-llm/tandem"

// descend is wrong on purpose, to show that the tests of equality notice: it takes a node's first child,
// the draft's favourite, although the target drew something else.
func descend(t tandem.Tree, node int32, x tandem.Token) int32 {
	if next := child(t, node, x); next >= 0 {
		return next
	}
	for i, p := range t.Bare().Parents {
		if p == node {
			return int32(i)
		}
	}
	return -1
}

//go:build !brokenaccept

package spec

import "github.com/tandem-llm/tandem"

// descend returns the node to go down to from node when the target drew x, -1 to stop.
func descend(t tandem.Tree, node int32, x tandem.Token) int32 { return child(t, node, x) }

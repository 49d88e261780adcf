package spec

import "github.com/tandem-llm/tandem"

// Accept applies the exact rule: at each node, from the root down, draw the target's token; if it is a
// child of the node go down to it, else stop. path holds the accepted nodes, from the top; tokens holds their
// tokens and, last, the token that had no node: len(path)+1, always at least one.
//
// draw(node) returns the target's own token after that node, with the random number of that position; it is called once for each node
// visited, in order. So the tokens are those of plain decoding, whatever the tree holds. t must be valid.
func Accept(t tandem.Tree, draw func(node int32) tandem.Token) (path []int32, tokens []tandem.Token) {
	at := int32(0)
	for {
		x := draw(at)
		next := descend(t, at, x)
		if next < 0 {
			return path, append(tokens, x)
		}
		path, tokens = append(path, next), append(tokens, t.Tokens[next])
		at = next
	}
}

// child returns the child of node with that token, -1 if there is none. Prompt nodes have no tokens.
func child(t tandem.Tree, node int32, token tandem.Token) int32 {
	for i := int(node) + 1; i < t.Guesses(); i++ {
		if t.Parents[i] == node && t.Tokens[i] == token {
			return int32(i)
		}
	}
	return -1
}

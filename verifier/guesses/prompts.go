package guesses

import (
	"slices"

	"github.com/tandem-llm/tandem"
)

// promptsBehind returns the prompt nodes behind a node, by the number of their embedding, -1 for none, and how many levels have those of
// all members.
func promptsBehind(t tandem.Tree, node int32, w tandem.SelfDraft) (at []int32, levels int) {
	at = slices.Repeat([]int32{-1}, w.Members*w.Levels)
	for i := t.Guesses(); i < t.Len(); i++ {
		above := node
		e := int(t.Tokens[i])
		if e%w.Levels > 0 {
			above = at[e-1]
		}
		if above >= 0 && t.Parents[i] == above {
			at[e] = int32(i)
		}
	}
	for ; levels < w.Levels; levels++ {
		for m := range w.Members {
			if at[m*w.Levels+levels] < 0 {
				return at, levels
			}
		}
	}
	return at, levels
}

// promptRows returns the tokens and parents of the prompt rows behind the end of a prompt, for levels levels.
func promptRows(w tandem.SelfDraft, levels int) (tokens []tandem.Token, parents []int32) {
	for m := range w.Members {
		for l := range levels {
			parent := int32(len(tokens) - 1)
			if l == 0 {
				parent = -1
			}
			tokens, parents = append(tokens, tandem.Token(-1-(m*w.Levels+l))), append(parents, parent)
		}
	}
	return tokens, parents
}

// checkPrompts checks the prompt nodes of a valid tree: the embeddings are the self-draft's, each below a guess or the one before of its
// member.
func checkPrompts(t tandem.Tree, w tandem.SelfDraft) error {
	for i := t.Guesses(); i < t.Len(); i++ {
		e, p := int(t.Tokens[i]), int(t.Parents[i])
		switch first := e%w.Levels == 0; {
		case e >= w.Levels*w.Members:
			return tandem.Errorf("ticket", tandem.Invalid, "prompt node %d has embedding %d: want 0 to %d", i, e, w.Levels*w.Members-1)
		case first && p >= t.Guesses():
			return tandem.Errorf("ticket", tandem.Invalid,
				"prompt node %d has embedding %d, a first one, below prompt node %d: want it below a token", i, e, p)
		case !first && (p < t.Guesses() || int(t.Tokens[p]) != e-1):
			return tandem.Errorf("ticket", tandem.Invalid,
				"prompt node %d has embedding %d below node %d: want it below a prompt node with %d", i, e, p, e-1)
		}
	}
	return nil
}

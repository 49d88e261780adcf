package token

import (
	"cmp"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Count adds to counts, which has Size elements, how often each token is in a text.
func (v *Vocab) Count(counts []int, text string) {
	for _, t := range v.Encode(text, false) {
		counts[t]++
	}
}

// Needed returns the tokens without which no text can be told to its end, ascending: single bytes, of which every text can be made, among
// them ASCII's characters; control and user-defined tokens, of which chat templates and calls of tools consist; the ends of a generation;
// the unknown token.
func (v *Vocab) Needed() (all []tandem.Token) {
	for i, k := range v.kinds {
		t := tandem.Token(i)
		if k == control || k == userDefined || k == single || k == unknown || len(v.prints[i]) == 1 || v.IsEnd(t) {
			all = append(all, t)
		}
	}
	return all
}

// Frequent returns n tokens, ascending, those that a draft can say if it has only so many: the needed ones, then those that counts says
// are the most frequent, then the others in the order in which the tokenizer's training made them, which is by their frequency in its
// texts. counts may be nil. Errors: Invalid for an n that the needed tokens exceed, or that leaves nothing out.
func (v *Vocab) Frequent(n int, counts []int) ([]tandem.Token, error) {
	needed := v.Needed()
	if n <= len(needed) || n >= v.Size() {
		return nil, tandem.Errorf(op, tandem.Invalid, "%d tokens to keep: want more than the %d that every text needs (bytes, control "+
			"tokens, markers of templates), and fewer than all %d", n, len(needed), v.Size())
	}
	made := v.made()
	rank := func(t tandem.Token) (int, int) {
		if counts == nil {
			return 0, made[t]
		}
		return -counts[t], made[t]
	}
	kept := make([]bool, v.Size())
	for _, t := range needed {
		kept[t] = true
	}
	var others []tandem.Token
	for i, k := range v.kinds {
		if t := tandem.Token(i); !kept[i] && (k == normal || counts != nil && counts[i] > 0) {
			others = append(others, t)
		}
	}
	slices.SortFunc(others, func(a, b tandem.Token) int {
		inA, madeA := rank(a)
		inB, madeB := rank(b)
		return cmp.Or(inA-inB, madeA-madeB, int(a-b))
	})
	all := append(needed, others[:min(n-len(needed), len(others))]...)
	slices.Sort(all)
	return all, nil
}

// made returns for each token when the training of its tokenizer made it: the place of its merge, or of its score among all scores; those
// without are the last. A file with neither merges nor scores has its tokens in that order.
func (v *Vocab) made() []int {
	at := make([]int, v.Size())
	switch {
	case v.bpe != nil && len(v.bpe.order) > 0:
		for i := range at {
			at[i] = math.MaxInt32
		}
		for i, pair := range v.bpe.order {
			if to := v.bpe.merges[pair].symbol; int(to) < len(at) {
				at[to] = min(at[to], i)
			}
		}
	case v.scores != nil:
		order := make([]tandem.Token, v.Size())
		for i := range order {
			order[i] = tandem.Token(i)
		}
		slices.SortStableFunc(order, func(a, b tandem.Token) int { return cmp.Compare(v.scores[b], v.scores[a]) })
		for i, t := range order {
			at[t] = i
		}
	default:
		for i := range at {
			at[i] = i
		}
	}
	return at
}

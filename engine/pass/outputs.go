package pass

import (
	"math"
	"slices"
)

// outputs says which tokens a model's logits are of. A draft may compute those of some tokens only, in rows of its output matrix: then all
// that a caller sees has token ids all the same. Its probabilities are over these tokens alone, so they add up to 1 without the others:
// a little too high where the model would have said another token.
type outputs struct {
	ids    []int32     // the token of each row; nil: row i is token i
	vocab  int         // tokens in all
	spread [][]float32 // with ids, per wanted row: logits of all tokens
}

// token returns the token of a row.
func (o *outputs) token(row int) int32 {
	if o.ids == nil {
		return int32(row)
	}
	return o.ids[row]
}

// tokens returns the tokens of rows: rows itself, or a copy.
func (o *outputs) tokens(rows []int32) []int32 {
	if o.ids == nil {
		return rows
	}
	rows = slices.Clone(rows)
	for i, r := range rows {
		rows[i] = o.ids[r]
	}
	return rows
}

// widen returns the logits of wanted row i as logits of all tokens, -Inf for those that have no row. They are valid until the next call
// for that row.
func (o *outputs) widen(i int, logits []float32) []float32 {
	if o.ids == nil {
		return logits
	}
	for len(o.spread) <= i {
		o.spread = append(o.spread, slices.Repeat([]float32{float32(math.Inf(-1))}, o.vocab))
	}
	for row, id := range o.ids {
		o.spread[i][id] = logits[row]
	}
	return o.spread[i]
}

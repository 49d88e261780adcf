package engine

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
)

// outputs says which tokens a model's logits are of. A draft may compute those of some tokens only, in rows of its output matrix: then all
// that a caller sees has token ids all the same. Its probabilities are over these tokens alone, so they add up to 1 without the others:
// a little too high where the model would have said another token.
type outputs struct {
	ids    []int32     // the token of each row; nil: row i is token i
	vocab  int         // tokens in all
	spread [][]float32 // with ids, per wanted row: logits of all tokens
}

// rows returns how many logits a pass computes for a wanted row.
func (o *outputs) rows() int {
	if o.ids == nil {
		return o.vocab
	}
	return len(o.ids)
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

// CheckTarget returns Invalid for a model that cannot be a target, because its file is trimmed and so it cannot say every token. name is
// the file's, for the message.
func CheckTarget(name string, c Config) error {
	if c.Outputs == nil {
		return nil
	}
	return trimmed(name, &c, "a target must be able to say all of them: want the model that it was made from")
}

// trimmed returns Invalid for a trimmed model where a whole one is needed; want says why, and what would be right.
func trimmed(name string, c *blocks.Config, want string) error {
	return tandem.Errorf("engine", tandem.Invalid, "%s is trimmed to %d of %d tokens (tandem model trim): %s", name, len(c.Outputs),
		c.Vocab, want)
}

package gguf

import (
	"github.com/tandem-llm/tandem"
)

// OutputIDsKey is the key of a trimmed file: a draft whose output matrix has rows for some tokens only. It is an array of int32, for each
// row of output.weight the id of its token, ascending. Files of whole models do not have it.
const OutputIDsKey = "tandem.output_ids"

// OutputIDs returns the ids of the tokens that a trimmed file can say, by row of its output matrix; nil for a whole model of vocab
// tokens. Errors: Corrupt for a table that is no array of integers, is empty or as long as the vocabulary, or is not in ascending order
// from 0 to vocab-1.
func (f *File) OutputIDs(vocab int) ([]int32, error) {
	if !f.Has(OutputIDsKey) {
		return nil, nil
	}
	all, err := f.Ints(OutputIDsKey, 0, vocab-1)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 || len(all) >= vocab {
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s: key %s has %d ids: want at least 1, and fewer than the vocabulary's %d",
			f.Path(), short(OutputIDsKey), len(all), vocab)
	}
	ids := make([]int32, len(all))
	for i, id := range all {
		if i > 0 && id <= all[i-1] {
			return nil, tandem.Errorf(op, tandem.Corrupt, "%s: key %s has %d as element %d, behind %d: want ascending ids",
				f.Path(), short(OutputIDsKey), id, i, all[i-1])
		}
		ids[i] = int32(id)
	}
	return ids, nil
}

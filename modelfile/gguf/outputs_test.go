package gguf

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
)

// FuzzOutputIDs: a table of ids is refused as corrupt, or it is what Ints says of it, ascending and within the vocabulary.
func FuzzOutputIDs(f *testing.F) {
	table := func(ids any) []byte {
		w := NewWriter()
		w.Set("general.architecture", "llama")
		w.Set(OutputIDsKey, ids)
		return written(f, w)
	}
	for _, ids := range []any{[]int32{1, 2, 9}, []int32{2, 1}, []int32{}, []int64{1 << 40}, []uint8{3, 4}, "no", []float32{1}} {
		f.Add(table(ids), 10)
	}
	f.Fuzz(func(t *testing.T, data []byte, vocab int) {
		file, err := Parse(data)
		if err != nil {
			return
		}
		ids, err := file.OutputIDs(vocab)
		if err != nil {
			if tandem.KindOf(err) != tandem.Corrupt {
				t.Fatalf("%v: kind %v", err, tandem.KindOf(err))
			}
			return
		}
		if !file.Has(OutputIDsKey) {
			if ids != nil {
				t.Fatal("ids of a whole model")
			}
			return
		}
		if len(ids) == 0 || len(ids) >= vocab || !slices.IsSorted(ids) || ids[0] < 0 || int(ids[len(ids)-1]) >= vocab ||
			len(slices.Compact(slices.Clone(ids))) != len(ids) {
			t.Fatalf("%d ids %v of %d tokens", len(ids), ids, vocab)
		}
	})
}

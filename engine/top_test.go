package engine_test

import (
	"math"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestTopBelow: the best of all tokens are Top's, and those of the first n are the best of a vocabulary of n.
func TestTopBelow(t *testing.T) {
	m, err := engine.Open(enginetest.Draft, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 8, KVPages: engine.PagesFor(1, 32, 8)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	seq, err := m.NewSequence(32, 8)
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.Forward([]engine.Part{{Seq: seq, Extend: []tandem.Token{1, 300, 700}, Want: engine.WantAll}}, 16)
	if err != nil {
		t.Fatal(err)
	}
	for i := range out.Len() {
		want := out.Top(i)
		for _, limit := range []int{m.Config().Vocab, m.Config().Vocab + 9} {
			got := out.TopBelow(i, 16, limit)
			if !slices.Equal(got.IDs, want.IDs) || !slices.Equal(got.Logits, want.Logits) || got.Max != want.Max ||
				math.Abs(float64(got.Sum/want.Sum-1)) > 1e-5 {
				t.Errorf("row %d, the first %d tokens: %v, want %v", i, limit, got, want)
			}
		}
		logits := out.Logits(i)
		for _, limit := range []int{1, 3, 16, 259, 1000} {
			ids := make([]int32, limit)
			for id := range ids {
				ids[id] = int32(id)
			}
			slices.SortStableFunc(ids, func(a, b int32) int {
				switch {
				case logits[a] > logits[b]:
					return -1
				case logits[a] < logits[b]:
					return 1
				}
				return 0
			})
			got := out.TopBelow(i, 16, limit)
			if !slices.Equal(got.IDs, ids[:min(16, limit)]) || got.Max != logits[ids[0]] {
				t.Errorf("row %d, the first %d tokens: %v, want %v", i, limit, got.IDs, ids[:min(16, limit)])
			}
		}
	}
	logits := out.Logits(0)
	logits[5], logits[9] = float32(math.NaN()), 1e4
	if got := out.TopBelow(0, 3, 10); got.IDs[0] != 9 || got.Sum < 1 || got.Sum > 2 || slices.Contains(got.IDs, 5) {
		t.Errorf("with a logit that is no number: %v", got)
	}
}

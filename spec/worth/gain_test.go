package worth

import (
	"testing"
	"time"
)

// TestPlain: the time of plain decoding is found from rounds with trees, also where all passes take longer than was measured at the start,
// where a draft reads beside the first of them, where rounds with the root alone were held up, and where the answer is long.
func TestPlain(t *testing.T) {
	const ms = time.Millisecond
	costs := NewCosts(Linear(20*ms, 2*ms, 16))
	for name, tc := range map[string]struct {
		rounds, others, roots, slow, stalled int // of the roots each stalled-th
		factor                               float64
	}{
		"trees":                   {rounds: 40, factor: 1},
		"a slower machine":        {rounds: 40, factor: 1.3},
		"others in the pass":      {rounds: 40, others: 3, factor: 1},
		"roots":                   {rounds: 40, roots: 12, factor: 1.2},
		"stalls":                  {rounds: 32, roots: 31, stalled: 4, factor: 1},
		"a draft reads beside it": {rounds: 40, slow: 10, factor: 1},
		"long":                    {rounds: 3*stretch + 5, factor: 1.1},
		"short":                   {rounds: 1, factor: 1},
	} {
		var p Plain
		want := 0.0
		for i := range tc.rounds {
			s := Spent{Nodes: 5, Tokens: 3, Rest: ms, Context: 100 + i}
			if i < tc.roots {
				s.Nodes, s.Tokens = 1, 1
			}
			s.Rows = s.Nodes + tc.others
			busy := tc.factor * float64(costs.TimeAt(s.Rows, s.Context))
			if i >= tc.roots && i < tc.roots+tc.slow {
				busy *= 1.9
			}
			factor := tc.factor
			if i < tc.roots && tc.stalled > 0 && i%tc.stalled == 0 {
				busy, factor = 3*busy, 3*factor
			}
			s.Busy = time.Duration(busy)
			want += float64(s.Tokens) * (factor*float64(costs.TimeAt(1+tc.others, s.Context)) + float64(ms))
			p.Add(s, costs.TimeAt)
		}
		if got := float64(p.Time(costs.TimeAt)) / want; got < .99 || got > 1.01 {
			t.Errorf("%s: %.3f of the time of plain decoding", name, got)
		}
	}
	if got := new(Plain).Time(costs.TimeAt); got != 0 {
		t.Errorf("no round: %v", got)
	}
}

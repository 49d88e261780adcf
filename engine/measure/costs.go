package measure

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

const (
	costContext = 128 // committed positions that the passes of Costs reach
	costRounds  = 3   // most passes of a width
	costPasses  = 8   // that a model gets in any case, however slow it is: in time, so many of one row
)

// costWidths are the widths of Costs, the one first that a plan would miss most: plain decoding, then
// about where a CPU's pass stops being bound by memory, then what lies between and beyond.
var costWidths = []int{1, 8, 16, 4, 32, 2, 12, 24, 6, 48, 64}

// Costs measures what passes of a few widths take, each row with logits, in about budget, or in the time of
// eight passes of one row if they take longer. It returns the lower quartile of each width that it came to, by
// width, and no more than that of a wider one, which does all that a narrower one does: what disturbs a pass,
// such as other processes that start at the same time, only ever makes it longer. alive, if not nil, is called before each pass. The model's
// cache must have free pages for 128 positions (or its context) and 64 tree rows. Errors: the model's, that
// of a ctx that ends.
//
// The first pass of a width extends the prefix by so many rows with logits, the same work as a tree's, so
// that the positions which later passes attend to cost no time of their own.
func Costs(ctx context.Context, m *engine.Model, budget time.Duration, alive func()) ([]tandem.Cost, error) {
	widths := slices.DeleteFunc(slices.Clone(costWidths), func(w int) bool { return w > min(m.MaxRows(), m.MaxWanted()) })
	r := rig{model: m}
	s, err := m.NewSequence(min(costContext, m.Config().Context), slices.Max(widths))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	// The first pass finds caches, buffers and page tables cold, and does not count.
	if _, err := r.timed(engine.Segment{Seq: s, Extend: r.tokens(0, 1), Want: engine.WantTail}); err != nil {
		return nil, err
	}
	begun := time.Now()
	times := make([][]time.Duration, len(widths))
	for round := range costRounds {
		for i, w := range widths {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if w > 1 && time.Since(begun)+expected(widths, times, w) > max(budget, costPasses*times[0][0]) {
				continue // a narrower one may still fit
			}
			if alive != nil {
				alive()
			}
			took, err := r.widePass(s, w, round == 0)
			if err != nil {
				return nil, err
			}
			times[i] = append(times[i], took)
		}
		if time.Since(begun) > budget {
			break
		}
	}
	var costs []tandem.Cost
	for i, w := range widths {
		if n := len(times[i]); n > 0 {
			slices.Sort(times[i])
			costs = append(costs, tandem.Cost{Rows: w, Context: s.Len(), Time: times[i][(n-1)/4]})
		}
	}
	slices.SortFunc(costs, func(a, b tandem.Cost) int { return a.Rows - b.Rows })
	for i := len(costs) - 2; i >= 0; i-- {
		costs[i].Time = min(costs[i].Time, costs[i+1].Time)
	}
	return costs, nil
}

// widePass runs one pass of w rows with logits: more of the prefix if extend is set and there is room, else a
// tree that is dropped again.
func (r *rig) widePass(s *engine.Sequence, w int, extend bool) (time.Duration, error) {
	at := s.Len()
	if extend && at+w <= s.Capacity() {
		return r.timed(engine.Segment{Seq: s, Extend: r.tokens(at, w), Want: engine.WantAll})
	}
	return r.tree(s, w)
}

// expected returns how long a pass of w rows may take: as long as the last, or, for the first, as the widest
// narrower one with the rows beyond in proportion.
func expected(widths []int, times [][]time.Duration, w int) (t time.Duration) {
	widest := 0
	for i, known := range widths {
		if n := len(times[i]); n > 0 && known <= w && known > widest {
			widest, t = known, times[i][n-1]*time.Duration(w)/time.Duration(known)
		}
	}
	return t
}

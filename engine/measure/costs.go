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
	costPasses  = 8   // the least time of Costs, in passes of one row, however slow the model is
)

// costWidths are the widths of Costs, those that a plan needs most first: plain decoding, then about where
// a CPU's pass stops being bound by memory, then widths between and beyond.
var costWidths = []int{1, 8, 16, 4, 32, 2, 12, 24, 6, 48, 64}

// Costs measures the time of passes of a few widths, each row with logits, for about budget, or for the time of
// eight passes of one row if that is longer. It returns the lower quartile for each width that it reached, in order of
// width, and never more than for a wider pass: that does more work, and disturbances, such as other processes that
// start at the same time, only make passes longer. alive, if not nil, is called before each pass. The model's
// cache must have free pages for 128 positions (or its context) and 64 tree rows. Errors: the model's, and ctx's
// once it has ended.
//
// The first pass of a width extends the prefix by that many rows with logits, which is the same work as a tree.
// So filling the positions that later passes attend to takes no extra time.
func Costs(ctx context.Context, m *engine.Model, budget time.Duration, alive func()) ([]tandem.Cost, error) {
	widths := slices.DeleteFunc(slices.Clone(costWidths), func(w int) bool { return w > min(m.MaxRows(), m.MaxWanted()) })
	r := rig{model: m}
	s, err := m.NewSequence(min(costContext, m.Config().Context), slices.Max(widths))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	// The first pass finds caches, buffers and page tables cold, and does not count.
	if _, err := r.timed(engine.Part{Seq: s, Extend: r.tokens(0, 1), Want: engine.WantTail}); err != nil {
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
		return r.timed(engine.Part{Seq: s, Extend: r.tokens(at, w), Want: engine.WantAll})
	}
	return r.tree(s, w)
}

// expected returns how long a pass of w rows may take: as long as the last of that width; for the first, as long as
// the widest narrower one, scaled by the number of rows.
func expected(widths []int, times [][]time.Duration, w int) (t time.Duration) {
	widest := 0
	for i, known := range widths {
		if n := len(times[i]); n > 0 && known <= w && known > widest {
			widest, t = known, times[i][n-1]*time.Duration(w)/time.Duration(known)
		}
	}
	return t
}

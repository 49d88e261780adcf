package measure

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

const (
	draftRows   = 64                     // of a pass that reads a prompt
	draftRounds = 3                      // most passes of a kind
	draftTime   = 300 * time.Millisecond // after which no further pass begins, once both kinds were measured
)

// Draft measures what passes of a draft model cost: one of a single row, as trees need them, and one of 64 rows that reads a prompt, whose
// last row alone has logits. It runs one pass of each, and more for about 300 ms; the first pass of all finds everything cold and does not
// count. It returns the shortest times: disturbances, such as other processes that start at the same time, only make passes longer. A
// model whose context or passes have no room for 64 rows is measured with as many as fit. alive, if not nil, is called before each pass.
// Of a block draft the first is the pass of a whole block, and one that reads a prompt may cost less.
// The model's cache must have free pages for 193 positions, or its context. Errors: the model's, and ctx's once it has ended.
func Draft(ctx context.Context, m *engine.Model, alive func()) ([]tandem.Cost, error) {
	room := m.Config().Context - 1
	kinds, capacity, rounds := []Timing{{Point: Point{Rows: 1}}}, 1, draftRounds
	if rows := min(draftRows, m.MaxRows(), room); rows > 1 {
		kinds = append(kinds, Timing{Point: Point{Rows: rows, Prefill: true}})
		rounds = min(draftRounds, room/rows)
		capacity += rounds * rows
	}
	s, err := m.NewSequence(capacity, max(1, m.Block().Rows))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	r := rig{model: m}
	if _, err := r.timed(engine.Part{Seq: s, Extend: r.tokens(0, 1), Want: engine.WantTail}); err != nil {
		return nil, err
	}
	begun := time.Now()
	for round := 0; round < rounds && (round == 0 || time.Since(begun) < draftTime); round++ {
		for i := range kinds {
			k := &kinds[i]
			if alive != nil {
				alive()
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			k.Context = s.Len()
			took, err := r.draftPass(s, k.Point)
			if err != nil {
				return nil, err
			}
			k.take(took, r.used)
		}
	}
	return draftCosts(kinds, m.Block().Rows > 0), nil
}

// draftPass runs a pass that extends s, or a tree that is dropped again.
func (r *rig) draftPass(s *engine.Sequence, p Point) (time.Duration, error) {
	if p.Prefill {
		return r.timed(engine.Part{Seq: s, Extend: r.tokens(s.Len(), p.Rows), Want: engine.WantTail})
	}
	return r.tree(s, p)
}

// draftCosts returns the shortest times of passes; none takes longer than a wider one, but for a block's.
func draftCosts(timings []Timing, block bool) (costs []tandem.Cost) {
	for _, t := range timings {
		costs = append(costs, tandem.Cost{Rows: t.Rows, Context: t.Context, Time: slices.Min(t.Times), Experts: t.Experts})
	}
	for i := len(costs) - 2; i >= 0 && !block; i-- {
		costs[i].Time = min(costs[i].Time, costs[i+1].Time)
	}
	return costs
}

package measure

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	costContext = 128 // committed positions that the passes of Costs reach
	costRounds  = 3   // most passes of a width
	costPasses  = 8   // the least time of Costs, in passes of one row, however slow the model is
)

// costWidths are the widths of Costs, those that a plan needs most first: plain decoding, then about where
// a CPU's pass stops being bound by memory, then widths between and beyond.
var costWidths = []int{1, 8, 16, 4, 32, 2, 12, 24, 6, 48, 64}

// alikeWidths are the widths at which passes of a model with experts are also measured with rows that are all the same: the difference is
// what further experts cost.
var alikeWidths = []int{8, 16}

// Costs measures the time of passes of a few widths, each row with logits, for about budget, or for the time of
// eight passes of one row if that is longer. It returns the lower quartile for each width that it reached, in order of
// width, and never more than for a wider pass: that does more work, and disturbances, such as other processes that
// start at the same time, only make passes longer. Of a model with experts it also tells how many of them passes used, and what one more
// costs. alive, if not nil, is called before each pass. The model's
// cache must have free pages for 128 positions (or its context) and 64 tree rows. Errors: the model's, and ctx's once it has ended.
//
// The first pass of a width extends the prefix by that many rows with logits, which is the same work as a tree.
// So filling the positions that later passes attend to takes no extra time.
func Costs(ctx context.Context, m *engine.Model, budget time.Duration, alive func()) ([]tandem.Cost, error) {
	kinds := costKinds(m)
	widest := slices.MaxFunc(kinds, func(a, b Timing) int { return a.Rows - b.Rows }).Rows
	r := rig{model: m}
	s, err := m.NewSequence(min(costContext, m.Config().Context), widest)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	// The first pass finds caches, buffers and page tables cold, and does not count.
	if _, err := r.timed(engine.Part{Seq: s, Extend: r.tokens(0, 1), Want: engine.WantTail}); err != nil {
		return nil, err
	}
	begun := time.Now()
	for round := range costRounds {
		for i := range kinds {
			k := &kinds[i]
			if k.Rows > 1 && time.Since(begun)+expected(kinds, k.Point) > max(budget, costPasses*kinds[0].Times[0]) {
				continue // a narrower one may still fit
			}
			if alive != nil {
				alive()
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			took, err := r.widePass(s, k.Point, round == 0)
			if err != nil {
				return nil, err
			}
			k.take(took, r.used)
		}
		if time.Since(begun) > budget {
			break
		}
	}
	kinds = slices.DeleteFunc(kinds, func(k Timing) bool { return len(k.Times) == 0 })
	for i := range kinds {
		kinds[i].Context = s.Len()
	}
	return costsOf(kinds), nil
}

// Nominal returns the costs of passes of a model with so much work on a machine with those limits, which nobody has measured: those of
// worth.Linear.
func Nominal(w engine.Work, l kernels.Limits, widest int) []tandem.Cost {
	none := math.Inf(1)
	reading := w.Limit(kernels.Limits{ReadBytes: l.ReadBytes, IntMACs: none, FloatMACs: none}, 1, 1)
	row := w.Limit(kernels.Limits{ReadBytes: none, IntMACs: l.IntMACs, FloatMACs: l.FloatMACs}, 1, 1)
	return worth.Linear(reading, row, widest)
}

// memoryRate is what memory brings a processor, in bytes a second, where nobody has measured it: two channels of DDR4.
const memoryRate = 30e9

// NominalMixture returns the costs of passes of a streamed mixture with so much work, of which s says what has room, on a disk of so many
// bytes a second, before any pass was measured. Each expert is read from memory and, as often as it has no room, from the disk. Rows
// choose evenly, so they share few.
func NominalMixture(w engine.Work, s kernels.StreamStats, disk float64, widest int) (costs []tandem.Cost) {
	missing := 1 - min(1, float64(s.Experts)/float64(max(s.AllExperts, 1)))
	each := float64(w.Expert) * (1/memoryRate + missing/disk)
	rest := float64(w.Bytes-int64(w.Experts)*w.Expert)/memoryRate + float64(s.Ringed)/disk
	share := float64(s.RowExperts) / float64(max(s.AllExperts, 1)) // of a layer's experts that a row uses
	for rows := 1; rows <= widest; rows *= 2 {
		used := float64(w.Experts) / share * (1 - math.Pow(1-share, float64(rows)))
		costs = append(costs, tandem.Cost{Rows: rows, Time: time.Duration((rest + each*used) * 1e9), Experts: int(used),
			Expert: time.Duration(each * 1e9)})
	}
	return costs
}

// mixtureRows is the widest pass of a streamed mixture whose costs are computed.
const mixtureRows = 64

// calculatedBytes are those that the probe of Calculated reads: its memory is for passes, which are yet to come.
const calculatedBytes = 16 << 20

// calculatedLong is for how long Calculated measures the processor.
const calculatedLong = 60 * time.Millisecond

// Calculated returns the costs of passes of a model whose weights are streamed, before any has run. It computes while it reads:
//
//	T(w) = max(bytes a pass reads ÷ the disk's rate, T in memory(w))
//
// at rates that it measures, in half a second. Those of a mixture are NominalMixture's. There are none if
// nothing is streamed. Errors: those of the measurements.
func Calculated(m *engine.Model, s kernels.Streamer) (costs []tandem.Cost, err error) {
	work, bytes := m.Passes().Work(), s.StreamStats().Streamed
	if work.Experts == 0 && bytes == 0 {
		return nil, nil
	}
	rate, err := s.ReadRate(rateLong)
	if err != nil {
		return nil, err
	}
	if work.Experts > 0 {
		return NominalMixture(work, s.StreamStats(), rate, mixtureRows), nil
	}
	probe, err := m.Passes().NewProbe(calculatedBytes)
	if err != nil {
		return nil, err
	}
	defer probe.Close()
	limits, err := kernels.MeasureLimits(probe, calculatedLong)
	if err != nil {
		return nil, err
	}
	widest := min(m.MaxRows(), m.MaxWanted())
	memory := worth.NewCosts(Nominal(work, limits, widest))
	for _, w := range slices.Sorted(slices.Values(append(slices.Clone(costWidths), widest))) {
		if w <= widest {
			costs = append(costs, tandem.Cost{Rows: w, Time: max(time.Duration(float64(bytes)/rate*1e9), memory.Time(w))})
		}
	}
	return costs, nil
}

// costKinds are the passes that Costs measures of a model, in the order of their need. If it reads weights from a disk, rows cost nothing
// up to some number, so widths follow each other: what a wider pass takes is then known before it runs.
func costKinds(m *engine.Model) (kinds []Timing) {
	widths := slices.Clone(costWidths)
	if s, ok := m.Passes().Streamer(); ok && s.StreamStats().Streamed > 0 {
		slices.Sort(widths)
	}
	for _, w := range widths {
		if w > min(m.MaxRows(), m.MaxWanted()) {
			continue
		}
		kinds = append(kinds, Timing{Point: Point{Rows: w}})
		if m.Passes().Work().Experts > 0 && slices.Contains(alikeWidths, w) {
			kinds = append(kinds, Timing{Point: Point{Rows: w, Alike: true}})
		}
	}
	return kinds
}

// costsOf returns the costs of passes, by context and width: the lower quartiles, never more than for a wider pass behind the same
// context. What an expert costs is known where rows that differ and rows that are all the same were measured.
func costsOf(timings []Timing) (costs []tandem.Cost) {
	quartile := func(t *Timing) time.Duration { return slices.Sorted(slices.Values(t.Times))[(len(t.Times)-1)/4] }
	for i := range timings {
		if t := &timings[i]; !t.Alike {
			costs = append(costs, tandem.Cost{Rows: t.Rows, Context: t.Context, Time: quartile(t), Experts: t.Experts})
		}
	}
	slices.SortFunc(costs, func(a, b tandem.Cost) int { return cmp.Or(a.Context-b.Context, a.Rows-b.Rows) })
	for i := len(costs) - 2; i >= 0; i-- {
		if costs[i].Context == costs[i+1].Context {
			costs[i].Time = min(costs[i].Time, costs[i+1].Time)
		}
	}
	for i := range timings {
		t := &timings[i]
		at := slices.IndexFunc(costs, func(c tandem.Cost) bool { return t.Alike && c.Rows == t.Rows && c.Context == t.Context })
		if at < 0 {
			continue
		}
		c := &costs[at]
		if more := c.Experts - t.Experts; more > 0 {
			c.Expert = max(0, c.Time-quartile(t)) / time.Duration(more)
		}
	}
	return costs
}

// widePass runs one pass of rows with logits: more of the prefix if extend is set and there is room, else a
// tree that is dropped again.
func (r *rig) widePass(s *engine.Sequence, p Point, extend bool) (time.Duration, error) {
	at := s.Len()
	if extend && !p.Alike && at+p.Rows <= s.Capacity() {
		return r.timed(engine.Part{Seq: s, Extend: r.rows(at, p.Rows), Want: engine.WantAll})
	}
	return r.tree(s, p)
}

// expected returns how long a pass may take: as long as the last of that kind; for the first, as long as the widest narrower one, scaled by
// the number of rows.
func expected(kinds []Timing, p Point) (t time.Duration) {
	widest := 0
	for _, k := range kinds {
		if n := len(k.Times); n > 0 && k.Rows <= p.Rows && k.Rows >= widest && (!k.Alike || k.Point == p) {
			widest, t = k.Rows, k.Times[n-1]*time.Duration(p.Rows)/time.Duration(k.Rows)
		}
	}
	return t
}

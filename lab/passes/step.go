package passes

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/measure"
)

// Step compares the time of a pass of one row with the least that it can take, and with that of a row of a chain.
type Step struct {
	Context      int
	Best, Median time.Duration
	ReadBytes    float64       // bytes per second that the device reads
	Read         time.Duration // weights, and keys and values of the context, at that rate
	Launches     int           // of the pass; 0: the device has none, or does not tell
	Empty        time.Duration // of a graph of as many launches that do nothing
	Chained      time.Duration // median of a row, of ChainRows that the device runs at once; 0: it has no chains
}

// ChainRows is how many rows measured chains have.
const ChainRows = 8

// Limit is the longer of reading and launching.
func (s *Step) Limit() time.Duration { return max(s.Read, s.Empty) }

const stepGraphs = 50

// MeasureStep measures n passes of one row behind a context. m needs Pages for a point of ChainRows rows. Errors: those of Decode.
func MeasureStep(ctx context.Context, m *engine.Model, context, n int) (*Step, error) {
	points := []measure.Point{{Rows: 1, Context: context}}
	if m.Chains() {
		points = append(points, measure.Point{Rows: ChainRows, Context: context, Chain: true})
	}
	d, err := measure.Decode(ctx, m, points, n)
	if err != nil {
		return nil, err
	}
	p := &d.Passes[0]
	s := &Step{Context: context, Best: p.Best(), Median: p.Median(), ReadBytes: d.Limits.ReadBytes}
	s.Read = time.Duration(float64(m.Passes().Work().Bytes+p.KVBytes) / s.ReadBytes * 1e9)
	if len(d.Passes) > 1 {
		s.Chained = d.Passes[1].Median() / ChainRows
	}
	s.Launches, s.Empty, err = m.Passes().LeastTime(stepGraphs)
	return s, err
}

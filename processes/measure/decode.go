package measure

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
)

// Pass compares the time of passes of one kind with the hardware's limit.
type Pass struct {
	Timing
	Limit time.Duration // least time by the best limits: the longer of reading weights (of experts those used) and multiply-adds,
	//                           of a prompt those of attention too
	KVBytes     int64         // size of keys and values that the pass has to read
	KVLimit     time.Duration // reading them at the best bandwidth; not part of Limit
	Share       float64       // Limit ÷ the best time
	MedianShare float64       // median over rounds of (limit measured just before ÷ time)
	MACShare    float64       // multiply-adds with weights ÷ (the best time · the peak rate)
}

// Decoded is the result of Decode.
type Decoded struct {
	Passes                []Pass
	Limits, Before, After kernels.Limits // best, at the start, at the end
}

const (
	probeBytes = 512 << 20              // read in turn, so that they come from memory
	probeLong  = 50 * time.Millisecond  // of one limit at most
	probeFirst = 100 * time.Millisecond // of each limit at the start and the end
)

// Decode measures n passes of each kind, and before each pass, of a prompt before each piece, the limits, for as long as the pass takes.
// See Passes.
func Decode(ctx context.Context, m *engine.Model, points []Point, n int) (*Decoded, error) {
	probe, err := m.Passes().NewProbe(probeBytes)
	if err != nil {
		return nil, err
	}
	defer probe.Close()
	d := &Decoded{}
	if d.Before, err = probe.Sample(probeFirst); err != nil {
		return nil, err
	}
	samples := make([][]kernels.Limits, len(points))
	d.Limits = d.Before
	timings, err := Passes(ctx, m, points, n, func(i int, last time.Duration) error {
		l, err := probe.Sample(min(last, probeLong))
		samples[i] = append(samples[i], l)
		d.Limits = d.Limits.Max(l)
		return err
	})
	if err != nil {
		return nil, err
	}
	if d.After, err = probe.Sample(probeFirst); err != nil {
		return nil, err
	}
	d.Limits = d.Limits.Max(d.After)
	for i, t := range timings {
		d.Passes = append(d.Passes, d.pass(m, t, samples[i]))
	}
	return d, nil
}

// pass compares times with limits; samples[i] was measured before Times[i].
func (d *Decoded) pass(m *engine.Model, t Timing, samples []kernels.Limits) Pass {
	work, rows, wanted := m.Passes().Work(), t.Rows, t.Wanted()
	if t.Experts > 0 {
		work = work.Reading(t.Experts)
	}
	limit := func(l ...kernels.Limits) time.Duration { return work.Limit(l[0], rows, wanted) }
	if t.Prefill {
		limit = func(l ...kernels.Limits) time.Duration { return promptLimit(m, t.Point, l) }
	}
	p := Pass{Timing: t, Limit: limit(d.Limits), KVBytes: m.Passes().KVBytes() * int64(t.Context)}
	best := t.Best().Seconds()
	p.KVLimit = time.Duration(float64(p.KVBytes) / d.Limits.ReadBytes * 1e9)
	p.Share = p.Limit.Seconds() / best
	ints, floats := work.MACs(rows, wanted)
	p.MACShare = (ints/d.Limits.IntMACs + floats/d.Limits.FloatMACs) / best
	each := len(samples) / max(1, len(t.Times))
	shares := make([]float64, len(t.Times))
	for i, took := range t.Times {
		shares[i] = limit(samples[i*each:(i+1)*each]...).Seconds() / took.Seconds()
	}
	p.MedianShare = quantile(shares, 0.5)
	return p
}

// promptLimit returns the least time of a prompt, piece by piece by the limits that were measured before it, the last of them for the rest.
func promptLimit(m *engine.Model, p Point, l []kernels.Limits) (sum time.Duration) {
	c := m.Config()
	for at := 0; at < p.Rows; at += PieceRows {
		sum += m.Passes().Work().Prompt(l[min(at/PieceRows, len(l)-1)], &c, p.Context+at, min(PieceRows, p.Rows-at))
	}
	return sum
}

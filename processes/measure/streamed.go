package measure

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
)

// StreamedPass compares the time of passes of one kind with the disk's limit.
type StreamedPass struct {
	Timing
	Limit       time.Duration // time for the bytes that a pass streams, with its experts, at the median of the rates
	Experts     float64       // bytes of experts that a pass read, on average
	Used        float64       // experts that it used, layer by layer, on average
	Share       float64       // Limit ÷ the median time
	MedianShare float64       // median over rounds of (limit by the rate just before ÷ time)
	Waited      time.Duration // for weights, by a pass, on average
	Busy        float64       // share of the time of passes in which at least one read was in progress
}

// Streaming is the result of Streamed.
type Streaming struct {
	Passes []StreamedPass
	Rates  []float64 // rates of direct reads of the packed file before each pass, in bytes per second
	kernels.StreamStats
}

// rateLong is how long the disk's rate is measured before each pass that counts.
const rateLong = 250 * time.Millisecond

// Streamed measures n passes of each kind of a model whose weights are streamed, and before each pass the rate of direct reads of the
// same file. Nothing else is measured: the memory for that is not within the budget. See Passes.
func Streamed(ctx context.Context, m *engine.Model, s kernels.Streamer, points []Point, n int) (*Streaming, error) {
	out := &Streaming{Passes: make([]StreamedPass, len(points))}
	samples := make([][]float64, len(points))
	begun := make([]kernels.StreamStats, len(points))
	last := -1
	end := func() {
		if last >= 0 {
			now := s.StreamStats()
			out.Passes[last].Waited += now.Waited - begun[last].Waited
			out.Passes[last].Busy += (now.Busy - begun[last].Busy).Seconds()
			out.Passes[last].Experts += float64(now.ReadExperts - begun[last].ReadExperts)
			out.Passes[last].Used += float64(now.Used - begun[last].Used)
		}
	}
	timings, err := Passes(ctx, m, points, n, func(i int, _ time.Duration) error {
		end()
		rate, err := s.ReadRate(rateLong)
		samples[i], out.Rates = append(samples[i], rate), append(out.Rates, rate)
		last, begun[i] = i, s.StreamStats()
		return err
	})
	if err != nil {
		return nil, err
	}
	end()
	out.StreamStats = s.StreamStats()
	for i, t := range timings {
		p := &out.Passes[i]
		p.Timing = t
		n := float64(max(1, len(t.Times)))
		p.Experts, p.Used = p.Experts/n, p.Used/n
		limit := func(rate float64) float64 { return (float64(out.Ringed) + p.Experts) / rate }
		p.Limit = time.Duration(limit(quantile(samples[i], 0.5)) * 1e9)
		p.Share = p.Limit.Seconds() / t.Median().Seconds()
		shares, total := make([]float64, len(t.Times)), time.Duration(0)
		for k, took := range t.Times {
			shares[k] = limit(samples[i][k]) / took.Seconds()
			total += took
		}
		p.MedianShare = quantile(slices.Clone(shares), 0.5)
		p.Waited /= time.Duration(max(1, len(t.Times)))
		p.Busy /= max(total.Seconds(), 1e-9)
	}
	return out, nil
}

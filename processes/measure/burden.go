package measure

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
)

const (
	burdenRounds  = 5
	burdenPasses  = 20 * time.Millisecond // of each limit, alone and beside passes
	burdenContext = 64
)

// Burden returns the share of its speed that the processor probed by host loses while passes of m run, in reading memory or in products,
// whichever loses more. It is 0 for a model on a processor of its own and about a half for one on the same cores. It says what a draft pass
// ahead of a verdict costs the verifier (drafter.Config.AheadGain). It is the median of a few rounds, in which the processor works alone
// and beside one-row passes in turn. The model needs free pages for 65 positions. Errors: the model's, the probe's, and ctx's once it has
// ended.
func Burden(ctx context.Context, m *engine.Model, host kernels.Probe) (float64, error) {
	r := rig{model: m, points: []Point{{Rows: 1, Context: burdenContext}}, bases: map[int]*engine.Sequence{}}
	defer r.close()
	if _, err := r.pass(ctx, r.points[0]); err != nil { // fills the context
		return 0, err
	}
	var shares []float64
	for range burdenRounds {
		alone, err := host.Sample(burdenPasses)
		if err != nil {
			return 0, err
		}
		beside, err := r.beside(ctx, host)
		if err != nil {
			return 0, err
		}
		share := max(1-beside.ReadBytes/alone.ReadBytes, 1-beside.IntMACs/alone.IntMACs)
		shares = append(shares, min(max(share, 0), 1))
	}
	return quantile(shares, 0.5), nil
}

// beside samples the host's limits while passes run one after the other.
func (r *rig) beside(ctx context.Context, host kernels.Probe) (kernels.Limits, error) {
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if _, err := r.pass(ctx, r.points[0]); err != nil {
				ended <- err
				return
			}
		}
	}()
	limits, err := host.Sample(burdenPasses)
	close(stop)
	if failed := <-ended; err == nil {
		err = failed
	}
	return limits, err
}

package bench

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/app/bench/ranks"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/measure"
)

// ranked measures passes like p that are divided by rows and columns, as the times of each device alone say.
func (s Split) ranked(ctx context.Context, plan *kernels.Program, p measure.Point, b *measure.Balance) (*rankWay, error) {
	shares, err := ranks.SharesOf(plan, b.Measured[measure.Alone].Columns)
	if err != nil {
		return nil, err
	}
	pass, pages := treePass(p.Rows, p.Context)
	pair, err := ranks.New(plan, s.Devices, shares, pages, fillers(plan))
	if err != nil {
		return nil, err
	}
	defer pair.Close()
	took, err := medianTime(ctx, s.Rounds, func() error { return pair.Run(pass) })
	if err != nil {
		return nil, err
	}
	return &rankWay{KVHeads: shares.KVHeads[0], FFN: shares.FFN[0], MS: figures.MS(took),
		Share: figures.Share(float64(b.Ideal), float64(took))}, nil
}

// fillers returns bytes for the weights of p that give finite numbers and no denormal ones, which would be slow.
func fillers(p *kernels.Program) func(kernels.W) []byte {
	all := map[kernels.Type][]byte{}
	for _, w := range p.Weights {
		size := kernels.Rows.Bytes(w.Type, w.Rows, w.Cols)
		for i := len(all[w.Type]); i < size; i++ {
			x := byte(0x10 + i*7%13) // of halves, scales of about 0.002; codes of one sign
			if top := map[kernels.Type]int{kernels.F32: 4, kernels.BF16: 2}[w.Type]; top > 0 && i%top == top-1 {
				x = 0x3c // about 0.01
			}
			all[w.Type] = append(all[w.Type], x)
		}
	}
	return func(w kernels.W) []byte {
		t := p.Weights[w]
		return all[t.Type][:kernels.Rows.Bytes(t.Type, t.Rows, t.Cols)]
	}
}

// medianTime returns the median time of n runs, after a first one that does not count.
func medianTime(ctx context.Context, n int, run func() error) (time.Duration, error) {
	var times []time.Duration
	for range n + 1 {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		begun := time.Now()
		if err := run(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(begun))
	}
	return figures.Quantile(times[1:], 0.5), nil
}

// meetingUS returns how long it takes two devices to meet, in µs: the median of passes with nothing but meetings.
func meetingUS(devices [2]kernels.Device) (float64, error) {
	const meetings, passes = 1000, 21
	left, ok := devices[0].(kernels.Coupler)
	if !ok {
		return 0, tandem.Errorf("", tandem.Unsupported, "%v meets no other device", devices[0].About())
	}
	couple := left.Couple(devices[1])
	if couple == nil {
		return 0, tandem.Errorf("", tandem.Unsupported, "%v and %v share no memory", devices[0].About(), devices[1].About())
	}
	defer couple.Close()
	p := kernels.NewProgram(1, 0)
	for range meetings {
		p.Add(kernels.Meet{})
	}
	r, err := couple.Compile(p, p, p, nil, nil)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	took, err := medianTime(context.Background(), passes, func() error { return r.Run(&kernels.Pass{Rows: 1}) })
	return figures.US(took) / meetings, err
}

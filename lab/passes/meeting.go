package passes

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/kernels"
)

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
	took, err := figures.MedianTime(context.Background(), passes, func() error { return r.Run(&kernels.Pass{Rows: 1}) })
	return figures.US(took) / meetings, err
}

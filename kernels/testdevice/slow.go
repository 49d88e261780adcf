package testdevice

import (
	"time"

	"github.com/tandem-llm/tandem/kernels"
)

// Slow returns a device whose passes take as long as took says for their rows, if d is not slower by itself. It sleeps, so
// that the processor is free meanwhile, as beside a device of another kind.
func Slow(d kernels.Device, took func(rows int) time.Duration) kernels.Device { return slow{d, took} }

type slow struct {
	kernels.Device
	took func(rows int) time.Duration
}

func (d slow) Compile(p *kernels.Program, w kernels.Weights, c kernels.Cache) (kernels.Runner, error) {
	r, err := d.Device.Compile(p, w, c)
	if err != nil {
		return nil, err
	}
	return slowRunner{r, d.took}, nil
}

type slowRunner struct {
	kernels.Runner
	took func(rows int) time.Duration
}

func (r slowRunner) Run(a *kernels.Pass) error {
	end := time.Now().Add(r.took(a.Rows))
	err := r.Runner.Run(a)
	time.Sleep(time.Until(end))
	return err
}

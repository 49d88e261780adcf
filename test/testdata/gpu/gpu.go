// Package gpu, as tests build it in place of kernels/cuda/gpu/absent.go: its one GPU is an emulated one. It is wrong if TANDEM_TEST_INEXACT
// is set, and lost for good while there is a file TEST_GPU_GONE.
package gpu

import (
	"errors"
	"os"

	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
)

// Built: there is a GPU.
const Built = true

// gone returns an error once the GPU is lost.
func gone() error {
	if _, err := os.Stat(os.Getenv("TEST_GPU_GONE")); err == nil {
		return errors.New("the driver finds no GPU any more")
	}
	return nil
}

// Chips lists the emulated GPU.
func Chips() ([]cuda.Chip, error) {
	if err := gone(); err != nil {
		return nil, err
	}
	return []cuda.Chip{{Name: "emulated GPU", Arch: "emulated", Total: 4 << 30, Processors: 4}}, nil
}

// Open opens it.
func Open(int, func() int64) (cuda.Driver, error) {
	if err := gone(); err != nil {
		return nil, err
	}
	var o emulated.Options
	if os.Getenv("TANDEM_TEST_INEXACT") != "" {
		var err error
		if o.Sources, err = emulated.Inexact(); err != nil {
			return nil, err
		}
	}
	d, err := emulated.New(o)
	if err != nil {
		return nil, err
	}
	return losable{d}, nil
}

// losable is a GPU whose launches fail once it is lost.
type losable struct{ *emulated.Driver }

func (d losable) Launch(kernel string, s cuda.Shape, op, pass cuda.Pointer) error {
	if gone() != nil {
		d.FailLaunch(1)
	}
	return d.Driver.Launch(kernel, s, op, pass)
}

func (d losable) Run(g cuda.Graph) error {
	if gone() != nil {
		d.FailLaunch(1)
	}
	return d.Driver.Run(g)
}

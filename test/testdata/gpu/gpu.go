// Package gpu, as TestGPUCheck builds it in place of kernels/cuda/gpu/absent.go: its one GPU is an emulated one, which is
// wrong if TANDEM_TEST_INEXACT is set.
package gpu

import (
	"os"

	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
)

// Built: there is a GPU.
const Built = true

// Chips lists the emulated GPU.
func Chips() ([]cuda.Chip, error) {
	return []cuda.Chip{{Name: "emulated GPU", Arch: "emulated", Total: 4 << 30, Processors: 4}}, nil
}

// Open opens it.
func Open(int) (cuda.Driver, error) {
	var o emulated.Options
	if os.Getenv("TANDEM_TEST_INEXACT") != "" {
		var err error
		if o.Sources, err = emulated.Inexact(); err != nil {
			return nil, err
		}
	}
	return emulated.New(o)
}

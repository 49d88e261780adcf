//go:build !cuda

package gpu

import (
	"errors"

	"github.com/tandem-llm/tandem/kernels/cuda"
)

// Built tells whether this program was built with the tag cuda.
const Built = false

var errNotBuilt = errors.New("this tandem is built without CUDA: want one that 'test/scripts/cuda program' has built (docs/guides/cuda.md)")

// Chips lists the GPUs, by their index.
func Chips() ([]cuda.Chip, error) { return nil, errNotBuilt }

// Open opens the GPU with that index.
func Open(index int, available func() int64) (cuda.Driver, error) { return nil, errNotBuilt }

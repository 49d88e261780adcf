package cuda_test

import (
	"testing"

	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestPrograms: every program gives the bits of the definitions on emulated GPUs: one that shares the processor's memory, and one with
// memory of its own, under the sanitizers and with threads in another order.
func TestPrograms(t *testing.T) {
	shared, _ := testdevice.GPU(t, emulated.Options{Integrated: true})
	own, _ := testdevice.GPU(t, emulated.Options{Sanitize: true, Seed: 2})
	kerneltest.Programs(t, shared, own)
}

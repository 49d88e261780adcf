package cuda_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestPrograms: every program gives the bits of the definitions on emulated GPUs: one with threads in another order, under the sanitizers.
func TestPrograms(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	other, _ := testdevice.GPU(t, emulated.Options{Sanitize: true, Seed: 2})
	kerneltest.Programs(t, gpu, other)
}

// TestWideDeltaNet: a delta net whose heads have more elements than a block of threads can keep is refused by name.
func TestWideDeltaNet(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	for dim, want := range map[int]string{512: "", 513: "delta net of heads of 513 elements (at most 512)"} {
		p := kernels.NewProgram(1, 0)
		d := kernels.DeltaShape{KeyHeads: 1, ValueHeads: 1, Dim: dim, Kernel: 2}
		p.KV = kernels.KVShape{Layers: []kernels.KVLayer{{}}, Slots: 1,
			States: []kernels.State{{Kind: "delta net", Floats: d.Floats(), Record: d.Record()}}}
		p.Add(kernels.DeltaNet{DeltaShape: d, In: p.Buf(d.Channels()), Alpha: p.Buf(1), Beta: p.Buf(1), Out: p.Buf(dim),
			Conv: make([]float32, 2*d.Channels()), A: []float32{-1}, Bias: []float32{0}})
		_, err := gpu.Footprint(p)
		if want == "" && err != nil || want != "" && (!errors.As(err, new(*kernels.Unsupported)) || !strings.Contains(err.Error(), want)) {
			t.Errorf("heads of %d: %v, want %q", dim, err, want)
		}
	}
}

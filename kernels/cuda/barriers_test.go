package cuda_test

import (
	"fmt"
	"testing"

	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/cuda/src"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestBarriers: every barrier of the kernels is needed, and tests would see that it is missing: without it some order of the threads gives
// other bits. With all of them no order does.
func TestBarriers(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the kernels once for each barrier: skipped with -short")
	}
	const seeds = 6
	run := func(t *testing.T, o emulated.Options) []float32 {
		d, _ := testdevice.GPU(t, o)
		defer d.Close()
		return kerneltest.Fingerprint(t, d)
	}
	want := run(t, emulated.Options{})
	if len(want) == 0 {
		t.Fatal("the kernels fail")
	}
	for seed := range uint64(seeds) {
		if i := kerneltest.FirstDifference(run(t, emulated.Options{Seed: 100 + seed}), want); i >= 0 {
			t.Fatalf("with threads in order %d, number %d differs", 100+seed, i)
		}
	}
	all, err := emulated.Barriers(src.Files)
	if err != nil || len(all) == 0 {
		t.Fatalf("%v: barriers %v", err, all)
	}
	for _, b := range all {
		t.Run(fmt.Sprint(b.File, ":", b.Line), func(t *testing.T) {
			for seed := range uint64(seeds) {
				if kerneltest.FirstDifference(run(t, emulated.Options{Drop: b, Seed: 100 + seed}), want) >= 0 {
					return
				}
			}
			t.Errorf("nothing changes without this barrier in %d orders of the threads", seeds)
		})
	}
}

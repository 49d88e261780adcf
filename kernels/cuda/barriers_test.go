package cuda_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/cuda/src"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestBarriers: no order of the threads gives other bits. With -long: every barrier is needed, and tests would see that it is missing,
// since without it some order does.
func TestBarriers(t *testing.T) {
	const seeds = 6
	run := func(t *testing.T, o emulated.Options) []float32 {
		o.Integrated, o.Delay = true, 200*time.Microsecond // a processor that is let in too early then reads too early
		d, _ := testdevice.GPU(t, o)
		defer d.Close()
		all := kerneltest.Fingerprint(t, d)
		if all == nil {
			return nil
		}
		return append(all, kerneltest.Fingerprint(t, pair(t, d, testdevice.CPU(t, 1)))...)
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
	if !kerneltest.Long() {
		return // the kernels are compiled once for each barrier
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

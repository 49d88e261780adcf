package split_test

import (
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// pair returns a device made of two until the test ends.
func pair(t testing.TB, left, right kernels.Device, p split.Plan) *split.Device {
	t.Helper()
	d, err := split.New(left, right, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// TestPrograms: every program gives the bits of the definitions on two groups of cores with different kernels, in shared memory, whatever
// the shares, also if one side has nothing to do.
func TestPrograms(t *testing.T) {
	sets := cpu.Supported()
	worse := sets[max(0, len(sets)-2)]
	var all []kernels.Device
	for _, c := range []struct {
		threads [2]int
		at      split.Point
	}{{[2]int{1, 1}, split.Point{Columns: 0.5, Blocks: 0.5}}, {[2]int{2, 1}, split.Point{Columns: 0.3, Blocks: 0.8}},
		{[2]int{1, 2}, split.Point{Columns: 0, Blocks: 1}}, {[2]int{1, 1}, split.Point{Columns: 1, Blocks: 0}}} {
		c.at.Rows = 1
		all = append(all, pair(t, testdevice.CPU(t, c.threads[0]), testdevice.ISA(t, c.threads[1], worse),
			split.Plan{Points: []split.Point{c.at}}))
	}
	kerneltest.Programs(t, all...)
}

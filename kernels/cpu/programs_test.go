package cpu_test

import (
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

func devices(t testing.TB, threads ...int) (all []kernels.Device) {
	for _, d := range testdevice.CPUs(t, threads...) {
		all = append(all, d)
	}
	return all
}

// TestPrograms: every program gives the bits of the definitions on every instruction set, with one thread and with more than there are
// cores.
func TestPrograms(t *testing.T) { kerneltest.Programs(t, devices(t, 1, 3)...) }

// TestStreams: products read weights as one stream or as several, as suits the processor; the bits are the same.
func TestStreams(t *testing.T) {
	for _, several := range []bool{false, true} {
		if was := cpu.SetStreams(several); was != several { // the other way is TestPrograms
			kerneltest.MatMul(t, devices(t, 1)...)
			cpu.SetStreams(was)
		} else {
			cpu.SetStreams(was)
		}
	}
}

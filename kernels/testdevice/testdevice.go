// Package testdevice chooses devices for tests. Only tests import it.
package testdevice

import (
	"os"
	"runtime"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
	"github.com/tandem-llm/tandem/kernels/ref/device"
)

// CPU returns this machine's processor with so many threads, all cores for 0, until the test ends.
func CPU(t testing.TB, threads int) *cpu.Device {
	t.Helper()
	return ISA(t, threads, cpu.Auto)
}

// ISA is CPU with the kernels of an instruction set.
func ISA(t testing.TB, threads int, isa cpu.ISA) *cpu.Device {
	t.Helper()
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	d, err := cpu.New(threads, isa)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// CPUs returns a CPU for every instruction set of this machine and each of the numbers of threads.
func CPUs(t testing.TB, threads ...int) (all []*cpu.Device) {
	t.Helper()
	for _, isa := range cpu.Supported() {
		for _, n := range threads {
			all = append(all, ISA(t, n, isa))
		}
	}
	return all
}

// Ref returns the device that computes by the definitions.
func Ref() kernels.Device { return device.New() }

// RealGPU is the variable that makes GPU return this machine's first GPU, in a test compiled with the tag cuda (test/scripts/gpu-check).
const RealGPU = "TANDEM_TEST_GPU"

// GPU returns an emulated GPU until the test ends, and its driver, which can be made to fail. Without g++ the test is skipped. With RealGPU
// it returns a real one, and no driver.
func GPU(t testing.TB, o emulated.Options) (*cuda.Device, *emulated.Driver) {
	t.Helper()
	var driver *emulated.Driver
	open := func() (cuda.Driver, error) { return gpu.Open(0, nil) }
	if os.Getenv(RealGPU) == "" {
		driver = emulated.Open(t, o)
		open = func() (cuda.Driver, error) { return driver, nil }
	}
	d, err := cuda.New(open)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d, driver
}

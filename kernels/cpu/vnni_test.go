//go:build amd64 && linux

package cpu_test

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cpu/emulated"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestVNNI: products with AVX-VNNI give the bits of the definitions, for all types and ways of reading weights; so does a whole network.
// Processors that lack it emulate its one instruction, in the kernels as they were compiled.
func TestVNNI(t *testing.T) {
	if !slices.Contains(cpu.Supported(), cpu.AVX2) {
		t.Skip("the registers of AVX are needed")
	}
	emulated.VNNI(t)
	own := slices.Contains(cpu.Supported(), cpu.AVXVNNI)
	before := emulated.Count()
	defer cpu.AssumeVNNI(cpu.AssumeVNNI(true))
	d := testdevice.ISA(t, 1, cpu.AVXVNNI)
	was := cpu.ChosenReading().Reading
	defer cpu.SetReading(was)
	for r := cpu.Alone; r <= cpu.Streams; r++ {
		cpu.SetReading(r)
		t.Run(r.String(), func(t *testing.T) { kerneltest.FewMatMul(t, d) })
	}
	cpu.SetReading(was)
	t.Run("Extremes", func(t *testing.T) { kerneltest.Extremes(t, d) })
	got, want := kerneltest.Fingerprint(t, d), kerneltest.Fingerprint(t, testdevice.ISA(t, 1, cpu.AVX2))
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("a network gives other numbers than with AVX2")
	}
	n := emulated.Count() - before
	t.Log(n, "instructions emulated")
	if own != (n == 0) {
		t.Errorf("%d instructions emulated, the processor has them: %v", n, own)
	}
}

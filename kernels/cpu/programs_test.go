package cpu_test

import (
	"strings"
	"testing"
	"time"

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

// TestReading: with few rows, products read weights in the way that suits the processor; the bits are the same, also without
// the instruction that looks up codes of MXFP4.
func TestReading(t *testing.T) {
	all := devices(t, 1) // first, because it chooses
	was := cpu.ChosenReading().Reading
	defer cpu.SetReading(was)
	cpu.SetPermutes(false)
	defer cpu.SetPermutes(true)
	for r := cpu.Alone; r <= cpu.Streams; r++ {
		if r != was { // that one is TestPrograms
			cpu.SetReading(r)
			kerneltest.FewMatMul(t, all...)
		}
	}
}

// TestReadingIsMeasured as on a processor that nobody knows: some way is chosen, and the kernels go on with the one before.
func TestReadingIsMeasured(t *testing.T) {
	was := cpu.ChosenReading().Reading
	defer cpu.SetReading(was)
	c := cpu.MeasureReading()
	t.Log(c.Reading, c.Why)
	if c.Reading < cpu.Alone || c.Reading > cpu.Streams || !strings.HasPrefix(c.Why, "measured: ") {
		t.Errorf("%+v", c)
	}
	if now := cpu.SetReading(was); now != was {
		t.Errorf("after measuring weights are read as %v, want %v", now, was)
	}
	ms := time.Millisecond
	for _, tc := range []struct {
		times [3]time.Duration // alone, ahead, streams
		want  cpu.Reading
	}{
		{[3]time.Duration{10 * ms, 10 * ms, 10 * ms}, cpu.Alone},
		{[3]time.Duration{10 * ms, 8 * ms, 8 * ms}, cpu.Alone}, // too little to be sure
		{[3]time.Duration{10 * ms, 5 * ms, 7 * ms}, cpu.Ahead},
		{[3]time.Duration{10 * ms, 7 * ms, 5 * ms}, cpu.Streams},
	} {
		if c := cpu.JudgeReading(tc.times); c.Reading != tc.want {
			t.Errorf("%v: %v, want %v", tc.times, c.Reading, tc.want)
		}
	}
}

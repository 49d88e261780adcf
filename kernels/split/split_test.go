package split_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// pair returns a device made of two until the test ends.
func pair(t testing.TB, left, right kernels.Device, all []kernels.Division) *split.Device {
	t.Helper()
	d, err := split.New(left, right, all)
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
		at      kernels.Division
	}{{[2]int{1, 1}, kernels.Division{Columns: 0.5, Blocks: 0.5}}, {[2]int{2, 1}, kernels.Division{Columns: 0.3, Blocks: 0.8}},
		{[2]int{1, 2}, kernels.Division{Columns: 0, Blocks: 1}}, {[2]int{1, 1}, kernels.Division{Columns: 1, Blocks: 0}}} {
		c.at.Rows = 1
		all = append(all, pair(t, testdevice.CPU(t, c.threads[0]), testdevice.ISA(t, c.threads[1], worse),
			[]kernels.Division{c.at}))
	}
	kerneltest.Programs(t, all...)
}

// TestStates: recurrent layers give the bits of the definitions beside a GPU on either side, which keeps all states too.
func TestStates(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	host := testdevice.CPU(t, 1)
	kerneltest.States(t, pair(t, host, gpu, nil), pair(t, gpu, host, nil))
}

// TestMeetingTime: two groups of cores meet in much less than a pass; two devices with memories of their own do not meet.
func TestMeetingTime(t *testing.T) {
	host := testdevice.CPU(t, 1)
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	for d, most := range map[*split.Device]time.Duration{pair(t, host, testdevice.CPU(t, 1), nil): 10 * time.Millisecond,
		pair(t, host, gpu, nil): 0} {
		if took, err := d.MeetingTime(); err != nil || took > most || most > 0 && took <= 0 {
			t.Errorf("%v: a meeting takes %v, %v: want at most %v", d.About(), took, err, most)
		}
	}
}

// TestLostSide: when a GPU is lost in the middle of a divided pass, the pass fails and says which side it was; so does the next.
func TestLostSide(t *testing.T) {
	gpu, driver := testdevice.GPU(t, emulated.Options{})
	d := pair(t, testdevice.CPU(t, 1), gpu, nil)
	if d.Shared() {
		t.Fatal("a processor and a GPU with memories of their own share memory")
	}
	p := kernels.NewProgram(2, 0)
	in, act, out := p.Buf(64), p.Act(64), p.Buf(96)
	p.Feed(in, act)
	p.MatMul(p.Weight(kernels.Weight{Name: "w", Type: kernels.Q8_0, Rows: 96, Cols: 64, Layout: d.Layout(kernels.Q8_0)}), act, out,
		kernels.MatMulOpt{})
	w, err := d.NewWeights(p)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r, err := d.Compile(p, w, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Run(&kernels.Pass{Rows: 2}); err != nil {
		t.Fatal(err)
	}
	driver.FailLaunch(2)
	for range 2 {
		err := r.Run(&kernels.Pass{Rows: 2})
		if err == nil || !strings.Contains(err.Error(), "the right device: cuda: emulated GPU is lost") {
			t.Errorf("a pass whose right side is lost: %v", err)
		}
	}
}

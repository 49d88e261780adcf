package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// pair returns a device made of two that share memory, until the test ends.
func pair(t testing.TB, left, right kernels.Device, all ...kernels.Division) *split.Device {
	t.Helper()
	d, err := split.New(left, right, all)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	if d.Apart() != nil {
		t.Fatal(d.Apart())
	}
	return d
}

// TestCouple: every program gives the bits of the definitions on a processor and a GPU in the same memory, on either side, whatever the
// shares, while fences take longer or shorter.
func TestCouple(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{Integrated: true, Delay: 50 * time.Microsecond})
	host := testdevice.CPU(t, 1)
	all := []kernels.Device{pair(t, host, gpu, kernels.Division{Rows: 1, Columns: 0.3, Blocks: 0.8})}
	if kerneltest.Long() {
		all = append(all, pair(t, gpu, testdevice.CPU(t, 2)), pair(t, gpu, host, kernels.Division{Rows: 1, Columns: 0, Blocks: 1}))
	}
	kerneltest.Programs(t, all...)
}

// TestMissingAbilities: what a GPU lacks for working in the processor's memory is named, whichever side it is on. Then each has its own.
func TestMissingAbilities(t *testing.T) {
	for _, c := range []struct {
		chip cuda.Chip
		want string
	}{
		{cuda.Chip{Integrated: true}, ""},
		{cuda.Chip{Pageable: true, Atomics: true}, ""},
		{cuda.Chip{Pageable: true}, "lacks atomics on its link to the processor's memory:"},
		{cuda.Chip{Atomics: true}, "lacks access through the processor's page tables:"},
		{cuda.Chip{}, "lacks access through the processor's page tables and atomics on its link to the processor's memory:"},
	} {
		if err := cuda.Shares(c.chip); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.chip, err, c.want)
		}
	}
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	host := testdevice.CPU(t, 1)
	for _, sides := range [][2]kernels.Device{{gpu, host}, {host, gpu}} {
		d, err := split.New(sides[0], sides[1], nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if err := d.Apart(); d.Shared() || err == nil || !strings.Contains(err.Error(), "emulated GPU is not integrated") {
			t.Errorf("%v: %v, want what the GPU lacks", d.About(), err)
		}
	}
}

// fill packs random values.
func fill(t *testing.T, p *kernels.Program, s kernels.Store) {
	t.Helper()
	for i, w := range p.Weights {
		src := kerneltest.RandomRows(rand.New(rand.NewPCG(uint64(i), 1)), w.Type, w.AllRows(), w.Cols)
		if err := s.Pack(kernels.W(i), 0, src); err != nil {
			t.Fatal(err)
		}
	}
}

// chain is n products of 256 by 256, each of the one before, of which the right side has half. They meet twice for each.
func chain(n int) (p *kernels.Program, in, out kernels.Buf) {
	const dim = 256
	p = kernels.NewProgram(4, 0)
	a, b, act := p.Buf(dim), p.Buf(dim), p.Act(dim)
	for i := range n {
		p.Feed(a, act)
		w := kernels.Weight{Name: fmt.Sprint("w", i), Type: kernels.Q8_0, Rows: dim, Cols: dim, Layout: kernels.Groups16}
		p.MatMul(p.Weight(w), act, b, kernels.MatMulOpt{})
		a, b = b, a
	}
	return p, 0, a
}

// machine is chain on a couple.
type machine struct {
	kernels.Runner
	out kernels.Buf
}

func newMachine(t *testing.T, d *split.Device, n int) machine {
	t.Helper()
	p, in, out := chain(n)
	w, err := d.NewWeights(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	fill(t, p, w)
	r, err := d.Compile(p, w, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	for i := range 4 {
		copy(r.Row(in, i), kerneltest.RandomFloats(rand.New(rand.NewPCG(uint64(i), 2)), 256, false))
	}
	return machine{r, out}
}

// TestLostInMemory: a GPU that is lost anywhere in a pass ends the pass on both sides, at once, and says so.
func TestLostInMemory(t *testing.T) {
	host := testdevice.CPU(t, 2)
	for _, at := range []int{1, 2, 3, 7, 12} {
		gpu, driver := testdevice.GPU(t, emulated.Options{Integrated: true})
		m := newMachine(t, pair(t, host, gpu), 6)
		driver.FailLaunch(at)
		begin := time.Now()
		err := m.Run(&kernels.Pass{Rows: 4})
		if err == nil || !strings.Contains(err.Error(), "cuda: emulated GPU is lost") || time.Since(begin) > 20*time.Second {
			t.Errorf("launch %d fails: %v after %v", at, err, time.Since(begin))
		}
		if err := m.Run(&kernels.Pass{Rows: 4}); !errors.Is(err, gpu.Lost()) {
			t.Errorf("after that: %v, want %v", err, gpu.Lost())
		}
	}
}

// meetings is a couple of a processor that does products between meetings, and a GPU that only meets.
func meetings(t *testing.T, host *cpu.Device, o emulated.Options, n int) (kernels.Couple, kernels.Runner) {
	t.Helper()
	o.Integrated = true
	gpu, _ := testdevice.GPU(t, o)
	couple, err := gpu.Couple(host, gpu)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(couple.Close)
	p, _, _ := chain(n)
	left, right := *p, *p
	left.Ops, right.Ops = nil, nil
	for i := range n {
		left.Add(p.Ops[2*i])
		left.Add(p.Ops[2*i+1])
		left.Add(kernels.Meet{})
		right.Add(kernels.Meet{})
	}
	w, err := couple.NewWeights(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	r, err := couple.Compile(p, &left, &right, w, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return couple, r
}

// TestEitherFirst: while the GPU's fences take up to 300 µs, each side comes first at some meetings, and both to all.
func TestEitherFirst(t *testing.T) {
	const n, most = 24, 200
	host := testdevice.CPU(t, 1)
	host.Repeat(16)
	_, r := meetings(t, host, emulated.Options{Delay: 300 * time.Microsecond}, n)
	for i := 1; i <= most; i++ {
		if err := r.Run(&kernels.Pass{Rows: 4}); err != nil {
			t.Fatal(err)
		}
		each, second := cuda.Came(r)
		if each != [2]int{n, n} {
			t.Fatalf("the sides came to %v meetings, want %d", each, n)
		}
		if second > 0 && second < i*n {
			t.Logf("the GPU came first to %d of %d meetings", second, i*n)
			return
		}
	}
	t.Error("one side came first to all meetings")
}

// TestPatience: a side that waits in vain gives up, the pass fails and says how often each came, and the next pass is whole.
func TestPatience(t *testing.T) {
	slow := testdevice.CPU(t, 1)
	slow.Repeat(20000)
	for name, c := range map[string]struct {
		host  *cpu.Device
		delay time.Duration
	}{"a slow processor": {slow, 0}, "a slow GPU": {testdevice.CPU(t, 1), 400 * time.Millisecond}} {
		couple, r := meetings(t, c.host, emulated.Options{Delay: c.delay}, 3)
		cuda.Patience(couple, time.Millisecond)
		var err error
		for range 20 { // a slow GPU is not slow at every fence
			if err = r.Run(&kernels.Pass{Rows: 4}); err != nil {
				break
			}
		}
		if err == nil || !strings.Contains(err.Error(), "meetings of a pass and emulated GPU to ") {
			t.Errorf("%s: %v, want how often each came", name, err)
		}
		cuda.Patience(couple, time.Minute)
		if err := r.Run(&kernels.Pass{Rows: 4}); err != nil {
			t.Errorf("%s, with patience: %v", name, err)
		}
		couple.Close()
		if err := r.Run(&kernels.Pass{Rows: 4}); err == nil || !strings.Contains(err.Error(), "the couple is closed") {
			t.Errorf("%s, closed: %v", name, err)
		}
	}
}

package engine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// dialogue runs two sequences, one with a long prefix, with trees, commits and a roll back, and returns all logits: the same
// passes on any device.
func dialogue(t *testing.T, m *Model, long int) (logits []float32) {
	t.Helper()
	r := rand.New(rand.NewPCG(8, 8))
	a, b := newSeq(t, m, long+32, 16), newSeq(t, m, 64, 16)
	defer a.Close()
	defer b.Close()
	keep := func(o *Output) {
		for i := range o.Len() {
			logits = append(append(logits, o.Logits(i)...), o.Top(i).Logits...)
		}
	}
	keep(forward(t, m, 3, Part{Seq: a, Extend: randomTokens(r, m, long), Want: WantTail}))
	tree := func(s *Sequence) Part {
		return Part{Seq: s, Nodes: randomTokens(r, m, 4), Parents: []int32{-1, 0, 0, 1}, Want: WantTail}
	}
	keep(forward(t, m, 3, tree(a), Part{Seq: b, Extend: randomTokens(r, m, 3), Want: WantAll}))
	if err := a.Commit([]int32{0, 2}); err != nil { // a row that has to be copied
		t.Fatal(err)
	}
	keep(forward(t, m, 3, tree(a), tree(b)))
	if err := a.Truncate(long - 1); err != nil {
		t.Fatal(err)
	}
	keep(forward(t, m, 3, Part{Seq: a, Extend: []tandem.Token{5}, Want: WantTail}))
	return logits
}

// unshared hides that a device can share memory with another one.
type unshared struct{ kernels.Device }

// TestSplitDevice: whole models on a device made of two, each matrix cut in two ranges of outputs and attention in two ranges of keys, with
// the blocks' (m, l, o) joined in order, give the bits that one device gives: in shared memory, with uneven shares that change from pass to
// pass, and where rows are exchanged.
func TestSplitDevice(t *testing.T) {
	cases := archCases()
	small := func(name string) string {
		c := cases[name].model
		c.generate(3)
		return c.write(t, t.TempDir())
	}
	sets := cpu.Supported()
	for _, c := range []struct {
		path, kvType string
		long         int
	}{{targetPath, "f16", 530}, {draftPath, "q8_0", 530},
		{small("gemma2"), "f16", 330}, {small("per layer"), "f16", 90}, {small("qwen3"), "f16", 300},
		{small("granite"), "f16", 40}, {small("deepseek2"), "f16", 300}, {small("mistral3"), "f16", 90}} {
		o := Options{KVType: c.kvType, KVPages: 24, MaxRows: 768}
		o.Device = testdevice.CPU(t, 2)
		want := dialogue(t, openTest(t, c.path, o), c.long)
		left, right := testdevice.CPU(t, 2), testdevice.ISA(t, 1, sets[max(0, len(sets)-2)])
		uneven := []kernels.Division{{Rows: 1, Columns: 0.2, Blocks: 0.7}, {Rows: 9, Context: 400, Columns: 0.6, Blocks: 0.1},
			{Rows: 9, Context: 900, Columns: 0.9, Blocks: 1}}
		for name, d := range map[string]*split.Device{"in shared memory": halves(t, left, right, nil),
			"unevenly": halves(t, left, right, uneven), "exchanging rows": halves(t, left, unshared{right}, uneven)} {
			o.Device = d
			if got := dialogue(t, openTest(t, c.path, o), c.long); len(got) != len(want) {
				t.Errorf("%s, %s: %d logits, want %d", c.path, name, len(got), len(want))
			} else if err := sameBits(got, want); err != nil {
				t.Errorf("%s, %s: %v", c.path, name, err)
			}
		}
	}
}

// halves returns a device made of two.
func halves(t *testing.T, left, right kernels.Device, all []kernels.Division) *split.Device {
	d, err := split.New(left, right, all)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// TestGPU: whole models of every architecture on an emulated GPU give the bits of the CPU, with keys and values in both types.
func TestGPU(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	beside := halves(t, gpu, testdevice.CPU(t, 1), nil)
	same := func(name, path, kvType string, long int) {
		o := Options{KVType: kvType, KVPages: 24, MaxRows: 512, Device: testdevice.CPU(t, 2)}
		want := dialogue(t, openTest(t, path, o), long)
		o.Device = gpu
		if err := sameBits(dialogue(t, openTest(t, path, o), long), want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if o.Device = beside; long <= 40 {
			return
		}
		if err := sameBits(dialogue(t, openTest(t, path, o), long), want); err != nil {
			t.Errorf("%s, divided between the GPU and the processor: %v", name, err)
		}
	}
	for name, c := range archCases() {
		c.model.generate(3)
		same(name, c.model.write(t, t.TempDir()), "f16", 40)
	}
	same("target", targetPath, "f16", 70)
	same("draft", draftPath, "f16", 270) // more than a block of keys
	same("draft", draftPath, "q8_0", 270)
}

// TestRefDevice: whole models computed by the definitions alone give the bits of the CPU. Passes are few: the definitions are slow.
func TestRefDevice(t *testing.T) {
	cases := archCases()
	for _, name := range everyArchitecture {
		c := cases[name].model
		c.generate(3)
		path := c.write(t, t.TempDir())
		o := Options{KVPages: 4, MaxRows: 64, Device: testdevice.CPU(t, 2)}
		want := dialogue(t, openTest(t, path, o), 12)
		o.Device = testdevice.Ref()
		if err := sameBits(dialogue(t, openTest(t, path, o), 12), want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, path := range []string{targetPath, draftPath} {
		one := func(d kernels.Device) []float32 {
			m := openTest(t, path, Options{KVPages: 1, MaxRows: 4, Device: d})
			out := forward(t, m, 0, Part{Seq: newSeq(t, m, 4, 0), Extend: []tandem.Token{1, 7}, Want: WantTail})
			return append([]float32(nil), out.Logits(0)...)
		}
		if err := sameBits(one(testdevice.Ref()), one(testdevice.CPU(t, 2))); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestDevices: a model needs a device that supports its plan.
func TestDevices(t *testing.T) {
	if _, err := Open(draftPath, Options{}); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "no device") {
		t.Errorf("no device: %v, want kind invalid", err)
	}
	_, err := Open(draftPath, Options{Device: lacking{testdevice.CPU(t, 1)}})
	if tandem.KindOf(err) != tandem.Unsupported || !strings.Contains(err.Error(), "half: no attention on this device yet") {
		t.Errorf("a device without attention: %v, want kind unsupported", err)
	}
	m := openTest(t, draftPath, Options{KVPages: 1, Device: testdevice.Ref()})
	if err := m.SetThreads(2); tandem.KindOf(err) != tandem.Unsupported {
		t.Errorf("threads of a device that has none: %v, want kind unsupported", err)
	}
}

// lacking is a device that cannot do everything.
type lacking struct{ kernels.Device }

func (lacking) Footprint(*kernels.Program) (kernels.Footprint, error) {
	return kernels.Footprint{}, &kernels.Unsupported{Device: "half", What: "attention"}
}

// sideDevices are one of each kind and instruction set.
func sideDevices(t *testing.T) map[string]kernels.Device {
	gpu, _ := testdevice.GPU(t, emulated.Options{Integrated: true})
	apart, _ := testdevice.GPU(t, emulated.Options{})
	all := map[string]kernels.Device{"ref": testdevice.Ref(), "cuda": gpu,
		"layers": layers.New(layers.Config{Near: testdevice.CPU(t, 1), Far: apart, Budget: 512 << 20}),
		"split":  halves(t, testdevice.CPU(t, 2), testdevice.CPU(t, 1), nil)}
	for _, isa := range cpu.Supported() {
		all[fmt.Sprint("cpu ", isa)] = testdevice.ISA(t, 2, isa)
	}
	return all
}

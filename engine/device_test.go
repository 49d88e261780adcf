package engine_test

import (
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestSplitDevice: whole models on a device made of two, each matrix cut in two ranges of outputs and attention in two ranges of keys, with
// the blocks' (m, l, o) joined in order, give the bits that one device gives: in shared memory, with uneven shares that change from pass to
// pass, and where rows are exchanged.
func TestSplitDevice(t *testing.T) {
	cases := naive.Cases()
	small := func(name string) string {
		c := cases[name].Model
		c.Generate(3)
		return c.Write(t, t.TempDir())
	}
	sets := cpu.Supported()
	for _, c := range []struct {
		path, kvType string
		long         int
	}{{enginetest.Target, "f16", 530}, {enginetest.Draft, "q8_0", 530},
		{small("gemma2"), "f16", 330}, {small("per layer"), "f16", 90}, {small("qwen3"), "f16", 300},
		{small("granite"), "f16", 40}, {small("deepseek2"), "f16", 300}, {small("mistral3"), "f16", 90}} {
		o := engine.Options{KVType: c.kvType, KVPages: 24, MaxRows: 768}
		o.Device = testdevice.CPU(t, 2)
		want := enginetest.Dialogue(t, enginetest.Open(t, c.path, o), c.long)
		left, right := testdevice.CPU(t, 2), testdevice.ISA(t, 1, sets[max(0, len(sets)-2)])
		uneven := []kernels.Division{{Rows: 1, Columns: 0.2, Blocks: 0.7}, {Rows: 9, Context: 400, Columns: 0.6, Blocks: 0.1},
			{Rows: 9, Context: 900, Columns: 0.9, Blocks: 1}}
		for name, d := range map[string]*split.Device{"in shared memory": enginetest.Halves(t, left, right, nil),
			"unevenly": enginetest.Halves(t, left, right, uneven), "exchanging rows": enginetest.Halves(t, left,
				enginetest.Unshared{Device: right}, uneven)} {
			o.Device = d
			if got := enginetest.Dialogue(t, enginetest.Open(t, c.path, o), c.long); len(got) != len(want) {
				t.Errorf("%s, %s: %d logits, want %d", c.path, name, len(got), len(want))
			} else if err := enginetest.SameBits(got, want); err != nil {
				t.Errorf("%s, %s: %v", c.path, name, err)
			}
		}
	}
}

// TestGPU: whole models of every architecture on an emulated GPU give the bits of the CPU, with keys and values in both types.
func TestGPU(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	beside := enginetest.Halves(t, gpu, testdevice.CPU(t, 1), nil)
	same := func(name, path, kvType string, long int) {
		o := engine.Options{KVType: kvType, KVPages: 24, MaxRows: 512, Device: testdevice.CPU(t, 2)}
		want := enginetest.Dialogue(t, enginetest.Open(t, path, o), long)
		o.Device = gpu
		if err := enginetest.SameBits(enginetest.Dialogue(t, enginetest.Open(t, path, o), long), want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if o.Device = beside; long <= 40 {
			return
		}
		if err := enginetest.SameBits(enginetest.Dialogue(t, enginetest.Open(t, path, o), long), want); err != nil {
			t.Errorf("%s, divided between the GPU and the processor: %v", name, err)
		}
	}
	for name, c := range naive.Cases() {
		c.Model.Generate(3)
		same(name, c.Model.Write(t, t.TempDir()), "f16", 40)
	}
	same("target", enginetest.Target, "f16", 70)
	same("draft", enginetest.Draft, "f16", 270) // more than a block of keys
	same("draft", enginetest.Draft, "q8_0", 270)
}

// TestRefDevice: whole models computed by the definitions alone give the bits of the CPU. Passes are few: the definitions are slow.
func TestRefDevice(t *testing.T) {
	cases := naive.Cases()
	for _, name := range naive.EveryArchitecture {
		c := cases[name].Model
		c.Generate(3)
		path := c.Write(t, t.TempDir())
		o := engine.Options{KVPages: 4, MaxRows: 64, Device: testdevice.CPU(t, 2)}
		want := enginetest.Dialogue(t, enginetest.Open(t, path, o), 12)
		o.Device = testdevice.Ref()
		if err := enginetest.SameBits(enginetest.Dialogue(t, enginetest.Open(t, path, o), 12), want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, path := range []string{enginetest.Target, enginetest.Draft} {
		one := func(d kernels.Device) []float32 {
			m := enginetest.Open(t, path, engine.Options{KVPages: 1, MaxRows: 4, Device: d})
			out := enginetest.Forward(t, m, 0, engine.Part{Seq: enginetest.NewSeq(t, m, 4, 0), Extend: []tandem.Token{1, 7},
				Want: engine.WantTail})
			return append([]float32(nil), out.Logits(0)...)
		}
		if err := enginetest.SameBits(one(testdevice.Ref()), one(testdevice.CPU(t, 2))); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestDevices: a model needs a device that supports its plan.
func TestDevices(t *testing.T) {
	if _, err := engine.Open(enginetest.Draft, engine.Options{}); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(),
		"no device") {
		t.Errorf("no device: %v, want kind invalid", err)
	}
	_, err := engine.Open(enginetest.Draft, engine.Options{Device: lacking{testdevice.CPU(t, 1)}})
	if tandem.KindOf(err) != tandem.Unsupported || !strings.Contains(err.Error(), "half: no attention on this device yet") {
		t.Errorf("a device without attention: %v, want kind unsupported", err)
	}
	m := enginetest.Open(t, enginetest.Draft, engine.Options{KVPages: 1, Device: testdevice.Ref()})
	if err := m.Passes().SetThreads(2); tandem.KindOf(err) != tandem.Unsupported {
		t.Errorf("threads of a device that has none: %v, want kind unsupported", err)
	}
}

// lacking is a device that cannot do everything.
type lacking struct{ kernels.Device }

func (lacking) Footprint(*kernels.Program) (kernels.Footprint, error) {
	return kernels.Footprint{}, &kernels.Unsupported{Device: "half", What: "attention"}
}

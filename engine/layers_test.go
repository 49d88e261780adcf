package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// budgets returns, for the model at path, the least budgets that hold 1, 2 … of its layers on d's far device.
func budgets(t *testing.T, path string, o engine.Options, d *layers.Device) (all []int64) {
	t.Helper()
	info, err := engine.Inspect(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= info.Config.Layers; n++ {
		o.Device = enginetest.Fixed{Device: d.With(n)}
		p, err := engine.Measure(path, o)
		if err != nil {
			t.Fatal(err)
		}
		o.Device = enginetest.Fixed{Device: d.With(0)}
		none, err := engine.Measure(path, o)
		if err != nil {
			t.Fatal(err)
		}
		if p.Own == (kernels.Space{}) || p.Weights >= none.Weights || p.PageBytes >= none.PageBytes {
			t.Fatalf("%s: %d layers on the GPU take %+v, none %+v", path, n, p, none)
		}
		all = append(all, p.Own.Total(o.KVPages))
	}
	return all
}

// TestLayers: whole models of every architecture with some of their layers on another device, or all of them, give the bits of one device,
// with keys and values in both types.
func TestLayers(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	sets := cpu.Supported()
	near := testdevice.CPU(t, 2)
	onGPU := layers.New(layers.Config{Near: near, Far: gpu})
	onCores := layers.New(layers.Config{Near: near, Far: testdevice.ISA(t, 1, sets[max(0, len(sets)-2)])})
	same := func(name, path, kvType string, long int, d *layers.Device, counts ...int) {
		o := engine.Options{KVType: kvType, KVPages: 24, MaxRows: 512, Device: near}
		want := enginetest.Dialogue(t, enginetest.Open(t, path, o), long)
		for _, n := range counts {
			o.Device = enginetest.Fixed{Device: d.With(n)}
			if d == onGPU {
				c := d.Config
				c.Budget = budgets(t, path, o, d)[n-1]
				o.Device = layers.New(c)
			}
			m := enginetest.Open(t, path, o)
			if about := m.About().Kernels; !strings.HasPrefix(about, fmt.Sprintf("%d on ", n)) {
				t.Errorf("%s: %s, want %d layers on the other device", name, about, n)
			}
			if err := enginetest.SameBits(enginetest.Dialogue(t, m, long), want); err != nil {
				t.Errorf("%s, %s: %v", name, m.About().Kernels, err)
			}
		}
	}
	for name, c := range naive.Cases() {
		c.Model.Generate(3)
		same(name, c.Model.Write(t, t.TempDir()), "f16", 40, onCores, 1)
	}
	same("target", enginetest.Target, "f16", 270, onCores, 1, 2, 3)
	same("target", enginetest.Target, "f16", 30, onGPU, 2, 4)
	same("draft", enginetest.Draft, "q8_0", 40, onGPU, 1)
}

// TestLayersMemory: a budget that holds no layer, or is more than the GPU has, is refused before anything is allocated, with the figures;
// one that holds more has more layers there.
func TestLayersMemory(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{Memory: 1 << 30})
	c := layers.Config{Near: testdevice.CPU(t, 1), Far: gpu}
	o := engine.Options{KVPages: 8, MaxRows: 16}
	all := budgets(t, enginetest.Target, o, layers.New(c))
	for budget, want := range map[int64]string{
		all[0] - 1: "which holds no layer: one takes " + memory.Bytes(all[0]), 2 << 30: "emulated GPU has 1.0 GiB free"} {
		c.Budget = budget
		o.Device = layers.New(c)
		for _, err := range []error{second(engine.Measure(enginetest.Target, o)), second(engine.Open(enginetest.Target, o))} {
			if tandem.KindOf(err) != tandem.Exhausted || !strings.Contains(err.Error(), want) {
				t.Errorf("a budget of %s: %v, want kind exhausted and %q", memory.Bytes(budget), err, want)
			}
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestOwnMemory: what a GPU with memory of its own takes is compared with that, not with the machine's; what one without takes is the
// machine's.
func TestOwnMemory(t *testing.T) {
	small, _ := testdevice.GPU(t, emulated.Options{Memory: 4 << 20})
	o := engine.Options{Device: small, KVPages: 8, MaxRows: 16}
	p, err := engine.Measure(enginetest.Draft, o)
	if err != nil {
		t.Fatal(err)
	}
	if p.Total() != memory.ProcessBytes || p.Own.Weights == 0 || p.Own.Page == 0 || p.Own.Buffers == 0 {
		t.Errorf("on a GPU %+v, want all of it in the GPU's memory", p)
	}
	_, err = engine.Open(enginetest.Draft, o)
	if tandem.KindOf(err) != tandem.Exhausted || !strings.Contains(err.Error(), "MB are free") ||
		!strings.Contains(err.Error(), "needs "+p.OwnString()+" of the GPU's memory") {
		t.Errorf("a GPU with too little memory: %v", err)
	}
	shared, _ := testdevice.GPU(t, emulated.Options{Integrated: true})
	o.Device = shared
	if q, err := engine.Measure(enginetest.Draft, o); err != nil || q.Own != (kernels.Space{}) || q.Weights != p.Own.Weights {
		t.Errorf("on a GPU that shares the memory %+v, %v; apart %+v", q, err, p)
	}
}
